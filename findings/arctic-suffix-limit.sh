#!/usr/bin/env bash
# arctic-inference 0.3.0: the limit of a draft, `max_spec_tokens` of `SuffixDecodingCache.speculate`.
# Expected: as its docstring says, 0 means the depth of the cache's tree; left out, it is optional.
# Behaviour: with 0 every draft is empty, without a word, on a text that repeats and is drafted with any other limit.
#   Left out, every call raises, as it reads an attribute that the class does not have. The package also needs numpy,
#   which its wheel does not ask for.
# Output seen:
#   limit 8: [1, 2, 3, 4, 5, 6, 7, 8]
#   limit 0: []
#   no limit: AttributeError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet arctic-inference==0.3.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache

cache = SuffixDecodingCache(max_tree_depth=24)
text = np.array([1, 2, 3, 4, 5, 6, 7, 8] * 4, dtype=np.int32)
cache.start_request(0, text)
eight = list(cache.speculate(0, text, max_spec_tokens=8).token_ids)
none = list(cache.speculate(0, text, max_spec_tokens=0).token_ids)
try:
    cache.speculate(0, text)
    unlimited = "a draft"
except AttributeError:
    unlimited = "AttributeError"
print("limit 8:", eight)
print("limit 0:", none)
print("no limit:", unlimited)
assert (eight, none, unlimited) == ([1, 2, 3, 4, 5, 6, 7, 8], [], "AttributeError"), "the behaviour changed"
PYTHON
