"""Names of `rolegraph.engine.spec`; `rolegraph.engine.lazily` reads where each comes from."""

from rolegraph.engine.spec.diagnostics import Diagnostic as Diagnostic
from rolegraph.engine.spec.diagnostics import Finding as Finding
from rolegraph.engine.spec.diagnostics import Path as Path
from rolegraph.engine.spec.diagnostics import Place as Place
from rolegraph.engine.spec.loader import TESTS_SUFFIX as TESTS_SUFFIX
from rolegraph.engine.spec.loader import find_spec as find_spec
from rolegraph.engine.spec.loader import is_tests_file as is_tests_file
from rolegraph.engine.spec.loader import load_spec as load_spec
from rolegraph.engine.spec.models import Loop as Loop
from rolegraph.engine.spec.models import Spec as Spec
from rolegraph.engine.spec.role import CALL_OF_A_ROLE as CALL_OF_A_ROLE
from rolegraph.engine.spec.role import TOOL_ROLE_KEYS as TOOL_ROLE_KEYS
from rolegraph.engine.spec.role import Credit as Credit
from rolegraph.engine.spec.role import Edge as Edge
from rolegraph.engine.spec.role import GroupBy as GroupBy
from rolegraph.engine.spec.role import Grouping as Grouping
from rolegraph.engine.spec.role import OnFailure as OnFailure
from rolegraph.engine.spec.role import Role as Role
from rolegraph.engine.spec.sources import ModelRef as ModelRef
from rolegraph.engine.spec.sources import PromptSource as PromptSource
from rolegraph.engine.spec.sources import Sampling as Sampling
from rolegraph.engine.spec.sources import api_of as api_of
from rolegraph.engine.spec.train import Lora as Lora
from rolegraph.engine.spec.train import Policy as Policy
from rolegraph.engine.spec.train import Schedule as Schedule
from rolegraph.engine.spec.train import Train as Train
