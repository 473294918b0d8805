"""What every verb can be asked: one frozen dataclass a verb, made of parts that several verbs share.

Here, in :mod:`draftgauge.core.parts` and in ``TrainingSpec`` are all defaults and help texts. The command line is
derived from them (:mod:`draftgauge.cli.main`), and the Python functions take them, or their fields as keywords
(:mod:`draftgauge.core.verb`). Fields of a part count as fields of the request.
"""

from draftgauge.core.parts import (
    ChatSpec,
    CostSpec,
    DeviceSpec,
    DraftSpec,
    JudgedSpec,
    LoadSpec,
    OutputSpec,
    PairSpec,
    PromptSpec,
    SamplingSpec,
    SeedSpec,
    StartSpec,
)
from draftgauge.requests.decoding import (
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
from draftgauge.requests.training import (
    DiagnoseRequest,
    EvaluateRequest,
    ExportRequest,
    StudyKvshotRequest,
    StudySpeckvRequest,
    TrainRequest,
)
