"""Measurements that others published, beside what vramest predicts: `python -m vramest.accuracy REPORTS.jsonl`.

    rows.py     a line of the file → Row, or a complaint with its line
    jobs.py     Row → Question (job files, and how their answers are put together), or why there is none
    predict.py  Question → Prediction, by vramest.check
    judge.py    Row and Prediction → how far they are apart, or whether a bound holds
    spread.py   statistics over rows and series
    table.py    Markdown

No number is adjusted on the way. Beside the code stand what it knows about the file's words (words.json), which
models a diffusers pipeline holds (pipelines.json), and what was found out about misses (explanations.json).
"""
