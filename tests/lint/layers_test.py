#!/usr/bin/env python3
"""Plants violations of the layers in a small tree and checks that exactly these are found."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_layers  # noqa: E402


def problems(files):
    """Returns the problems found in a tree with the files {path: text}."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return list(check_layers.problems_of(root))


class LayersTest(unittest.TestCase):
    def test_clean_tree(self):
        self.assertEqual([], problems({
            "base/a.hpp": "#include <vector>\n#include <sys/mman.h>\n",
            "base/a.cpp": '#include "base/a.hpp"\n#include <nlohmann/json.hpp>\n',
            "engines/x/a.cpp": '#include "base/a.hpp"\n#include "engines/x/a.hpp"\n',
            "actors/a.hpp": '#include "engines/x/a.hpp"\n#include "storage/a.hpp"\n#include <caf/fwd.hpp>\n',
            "workflows/a.cpp": '#include "engines/ops/cpu/factory.hpp"\n#include "engines/rollout_engine.hpp"\n',
            "configs/a.cpp": '#include "workflows/rl_options.hpp"\n#include <yaml-cpp/parser.h>\n',
            "launcher/main.cpp": '#include "configs/load.hpp"\n#include <caf/all.hpp>\n',
            "tests/a.cpp": '#include "engines/x/secret.hpp"\n#include <gtest/gtest.h>\n',
            "docs/readme.md": '#include "launcher/x.hpp"\n',
        }))

    def test_each_planted_violation_is_found(self):
        planted = [
            ("base/a.hpp", '#include "engines/a.hpp"', "base must not include engines/"),
            ("engines/a.cpp", '#include "storage/a.hpp"', "engines must not include storage/"),
            ("storage/a.cpp", '  #  include "engines/a.hpp"', "storage must not include engines/"),
            ("transport/a.cpp", '#include "actors/a.hpp"', "transport must not include actors/"),
            ("actors/a.hpp", '#include "workflows/a.hpp"', "actors must not include workflows/"),
            ("workflows/a.cpp", '#include "engines/x/secret.hpp"', "workflows must not include engines/"),
            ("workflows/a.cpp", '#include "configs/x_options.hpp"', "workflows must not include configs/"),
            ("configs/a.cpp", '#include "launcher/a.hpp"', "configs must not include launcher/"),
            ("launcher/a.cpp", '#include "tests/a.hpp"', "launcher must not include tests/"),
            ("engines/a.hpp", "#include <caf/fwd.hpp>", "engines must not include caf"),
            ("launcher/a.cpp", "#include <caf/all.hpp>", "launcher must not include caf"),
            ("workflows/a.cpp", "#include <yaml-cpp/yaml.h>", "workflows must not include yaml-cpp"),
            ("configs/a.cpp", "#include <CLI/App.hpp>", "configs must not include CLI"),
            ("actors/a.cpp", "#include <spdlog/spdlog.h>", "actors must not include spdlog"),
            ("base/a.hpp", "#include <nlohmann/json.hpp>", "a header of base must not include nlohmann"),
            ("base/a.hpp", "#include <xxhash.h>", "a header of base must not include xxhash"),
            ("storage/a.cpp", "#include <utf8proc.h>", "storage must not include utf8proc"),
            ("engines/a.hpp", "#include <cuda_runtime.h>", "a header of engines must not include cuda_runtime"),
            ("storage/a.hpp", "#include <arrow/array.h>", "a header of storage must not include arrow"),
            ("actors/a.cpp", "#include <parquet/metadata.h>", "actors must not include parquet"),
            ("base/a.cpp", "#include <gtest/gtest.h>", "base must not include gtest"),
            ("base/a.cpp", '#include "a.hpp"', '"a.hpp" names no folder'),
            ("engines/x/a.cpp", '#include "engines/ops/host/device_access.hpp"',
             "only engines/ops/ may include engines/ops/host/device_access.hpp"),
            ("extras/a.cpp", "int x;", "extras/ is not a known layer"),
        ]
        for path, line, problem in planted:
            with self.subTest(path=path, line=line):
                number = 1 if path.startswith("extras") else 2
                self.assertEqual([f"{path}:{number}: {problem}"],
                                 problems({path: f"// first\n{line}\n"}))

    def test_private_headers_stay_in_their_library(self):
        library = ("tidemill_add_library(x DEPS tidemill::base\n"
                   "  HEADERS a.hpp  # for all\n  PRIVATE_HEADERS b.hpp c.hpp SOURCES a.cpp)\n")
        files = {
            "storage/x/CMakeLists.txt": library,
            "storage/x/a.cpp": '#include "storage/x/b.hpp"\n',
            "storage/x/b.hpp": '#include "storage/x/c.hpp"\n',
            "storage/y/a.cpp": '#include "storage/x/a.hpp"\n',
            "tests/a.cpp": '#include "storage/x/b.hpp"\n',
        }
        self.assertEqual([], problems(files))
        for path, problem in [
                ("storage/y/b.cpp", "storage/x/b.hpp is private to storage/x/"),
                ("actors/b.cpp", "storage/x/b.hpp is private to storage/x/"),
                ("storage/x/a.hpp", "a public header must not include storage/x/b.hpp, which is private")]:
            with self.subTest(path=path):
                self.assertEqual([f"{path}:1: {problem}"],
                                 problems(files | {path: '#include "storage/x/b.hpp"\n'}))


if __name__ == "__main__":
    unittest.main()
