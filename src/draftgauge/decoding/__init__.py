"""The decoding loops: the plain one, which is the reference, the speculative and the batched one; and the recorder."""

from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings, Generation, OnCommit, Origin
from draftgauge.decoding.speculative import speculative_decode
