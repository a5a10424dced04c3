"""Specs under rLLM: a Workflow class, an AgentFlow, and the trainer and grouping hook for them."""

from rolegraph.engine.models.opening import Services as Services
from rolegraph.engine.shipped import model_folder as model_folder
from rolegraph.integrations.rllm.bridge import compile_agent_flow as compile_agent_flow
from rolegraph.integrations.rllm.bridge import compile_workflow as compile_workflow
from rolegraph.integrations.rllm.bridge import grouping_hook as grouping_hook
from rolegraph.integrations.rllm.trainer import agent_trainer as agent_trainer
