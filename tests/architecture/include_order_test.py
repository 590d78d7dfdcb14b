"""A folder of the library includes only folders above it, and public headers show no third party."""

import unittest

from source import FOLDERS, INCLUDE, SRC, folder_of, headers, included_folder, includes, shown, sources

# What a C++ user calls. A folder that is not here has no public header; a set names the only ones.
PUBLIC = {
    "base": None,
    "io": None,
    "profile": None,
    "shadow": {"trace.hpp"},  # tensors and the tape stay private
    "job": None,
    "device": None,
    "run": {"facts.hpp", "timeline.hpp"},
    "report": None,
    "advise": None,
    "diagnose": None,
    "calibrate": None,
    "probe": None,
}

STANDARD = frozenset(
    """algorithm array atomic bit cassert cctype cerrno cfloat charconv chrono cinttypes climits cmath compare concepts
    condition_variable cstddef cstdint cstdio cstdlib cstring deque exception expected filesystem forward_list fstream
    functional future initializer_list iomanip ios iosfwd istream iterator latch limits list locale map memory mutex new
    numbers numeric optional ostream queue random ranges ratio regex set shared_mutex source_location span sstream stack
    stdexcept string string_view system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set
    utility valarray variant vector version""".split()
)


class IncludeOrder(unittest.TestCase):
    def test_every_folder_has_its_place_in_the_order(self) -> None:
        for base in (INCLUDE / "vram", SRC):
            for folder in (path.name for path in base.iterdir() if path.is_dir()):
                self.assertIn(folder, FOLDERS, f"{folder}/ is new: give it a place in source.py and a line in HACKING.md")

    def test_a_folder_includes_only_folders_above_it(self) -> None:
        wrong = []
        for path in headers() + sources():
            own = folder_of(path)
            for include in includes(path):
                other = included_folder(include)
                if own is None or other is None:
                    continue
                if other not in FOLDERS:
                    wrong.append(f"{shown(path)}: {include} is in no folder that we know")
                elif FOLDERS.index(other) > FOLDERS.index(own):
                    wrong.append(f"{shown(path)}: {own}/ stands above {other}/ and must not include {include}")
        self.assertEqual(wrong, [])

    def test_own_headers_are_named_from_the_root(self) -> None:
        # "document.hpp" beside the file would hide from this test which folder it is.
        for path in headers() + sources():
            for include in includes(path):
                if include.startswith('"'):
                    self.assertIn("/", include, f"{shown(path)}: write the folder too")


class PublicHeaders(unittest.TestCase):
    def test_they_include_the_standard_library_and_each_other_alone(self) -> None:
        for path in headers():
            for include in includes(path):
                if include.startswith("<"):
                    self.assertIn(include.strip("<>"), STANDARD, f"{shown(path)}: no third party in a public header")
                else:
                    self.assertTrue(include.startswith('"vram/'), f"{shown(path)}: {include} is private")
                    self.assertTrue((INCLUDE / include.strip('"')).is_file(), f"{shown(path)}: {include} is not there")

    def test_only_what_a_user_calls_is_public(self) -> None:
        for path in headers():
            folder = folder_of(path)
            if folder is None:
                self.assertEqual(path.name, "vram.hpp")
                continue
            self.assertIn(folder, PUBLIC, f"{shown(path)}: {folder}/ has no public headers")
            allowed = PUBLIC[folder]
            if allowed is not None:
                self.assertIn(path.name, allowed, f"{shown(path)}: private headers stand beside their .cpp, in src/")

    def test_each_is_guarded(self) -> None:
        for path in headers() + [path for path in sources() if path.suffix == ".hpp"]:
            self.assertIn("#pragma once", path.read_text(encoding="utf-8"), shown(path))


if __name__ == "__main__":
    unittest.main()
