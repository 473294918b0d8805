"""What every verb can be asked: one frozen dataclass a verb, made of parts that several verbs share.

Here, in :mod:`draftgauge.core.parts` and in ``TrainingSpec`` are all defaults and help texts. The command line is
derived from them (:mod:`draftgauge.cli.derive`), and the Python functions take them, or their fields as keywords
(:mod:`draftgauge.api.verb`). Fields of a part count as fields of the request.
"""

from draftgauge.api.requests.decoding import (
    DATASTORE_TOKENS,
    PLAIN,
    AdviseRequest,
    BenchRequest,
    BenchServersRequest,
    CompareRequest,
    CostsRequest,
    DatastoreBuildRequest,
    DemoRequest,
    DoctorRequest,
    FitRequest,
    GenerateRequest,
    ProfileRequest,
    RankRequest,
    ReplayRequest,
    ReportRequest,
)
from draftgauge.api.requests.parts import (
    CostSpec,
    DraftSpec,
    JudgedSpec,
    LoadSpec,
    OutputSpec,
    PairSpec,
    PromptSpec,
    SamplingSpec,
    StartSpec,
)
from draftgauge.api.requests.training import (
    DiagnoseRequest,
    EvaluateRequest,
    ExportRequest,
    StudyKvshotRequest,
    StudySpeckvRequest,
    TrainRequest,
)
from draftgauge.core.parts import ChatSpec, DeviceSpec, SeedSpec
