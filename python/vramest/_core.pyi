from collections.abc import Sequence

__version__: str

def run_cli(args: Sequence[str]) -> tuple[int, str, str]: ...
