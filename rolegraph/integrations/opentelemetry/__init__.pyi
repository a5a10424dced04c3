"""Public names; `__init__.py` reads here where each name comes from."""

from rolegraph.integrations.opentelemetry.sending import export_spans as export_spans
from rolegraph.integrations.opentelemetry.sending import traced as traced
