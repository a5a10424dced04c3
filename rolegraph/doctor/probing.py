"""Probe of a Tinker service: `rolegraph doctor`."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

from pydantic import ValidationError

from rolegraph.api.jobs import blocking, ignore_event
from rolegraph.doctor.endpoint import probe_endpoint
from rolegraph.doctor.probes import ProbeReport, ProbeRow, ServiceProbe
from rolegraph.engine.errors import UsageError
from rolegraph.engine.models import Services
from rolegraph.engine.models.tinker import model_of, open_session
from rolegraph.engine.models.tinker_sdk import close
from rolegraph.engine.records import Note, Observer
from rolegraph.engine.spec import ModelRef
from rolegraph.engine.spec.sources import PROVIDERS


async def doctor_async(
    *, base_url: str | None = None, model: str | None = None, observe: Observer | None = None
) -> ProbeReport:
    """Probe a Tinker service and compare each behaviour with that of hosted Tinker; or probe an endpoint.

    Takes about a minute. Trains new adapters, and leaves saved states named `rolegraph-doctor-…`. With a
    `base_url`, writes the record that `train` reads for that URL and model, unless the service breaks during
    the probes.

    Args:
        base_url: URL of the service; None to serve a model folder of this machine for the probes.
        model: The model, as `tinker:NAME`, `local:FOLDER` or `openai:NAME`, or its name at `base_url`; None
            for the first model of the service, or the shipped model.
        observe: Function called with a note for each row.

    Returns:
        A row for each probe, and the traits of the service.

    Raises:
        UsageError: There is no key, or no such model.
        WorldError: Nothing answers at the URL.
    """

    def probed() -> list[ProbeRow]:
        rows: list[ProbeRow] = []
        for row in probe.rows():
            rows.append(row)
            observer(Note(f"{row.name}: {row.status} …"))
        return rows

    observer, start = observe or ignore_event, time.monotonic()
    ref = _ref(base_url, model)
    if ref.provider == "openai":
        return await probe_endpoint(ref, base_url, observer)
    with Services(base_url) as services:
        observer(Note("opening the service …"))
        served_model = await services.located(ref)
        session = await open_session(served_model)
        try:
            probe = ServiceProbe(session, model_of(session, served_model.ref))
            rows = await asyncio.to_thread(probed)
            if ref.served_here:
                rows.append(_bf16_row())
            is_alive = await asyncio.to_thread(probe.still_samples)
        finally:
            close(session.service, "success")
    is_recorded = bool(base_url) and is_alive  # a service that is started for the probes is known
    if is_recorded:
        probe.traits.save(session.url, probe.model)
    seconds = time.monotonic() - start
    return ProbeReport(session.url, probe.model, tuple(rows), seconds, probe.traits, recorded=is_recorded)


doctor = blocking(doctor_async)


def _bf16_row() -> ProbeRow:
    """Return the row of whether this machine's CPU computes in bfloat16; others emulate it, slower."""
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists():
        return ProbeRow("bf16 on this CPU", "any", "not known", "not offered")
    flags = sorted({*re.findall(r"\b(?:amx_|avx512_)?bf16\b", cpu.read_text("utf-8"))})
    seen = f"{' and '.join(flags)}: set bf16: true" if flags else "no AMX, no AVX512-BF16: keep float32"
    return ProbeRow("bf16 on this CPU", "any", seen, "ok")


def _ref(base_url: str | None, model: str | None) -> ModelRef:
    """Return the model that `doctor` probes.

    Raises:
        UsageError: The text is no model of a Tinker service or an OpenAI-compatible endpoint.
    """
    text = model or ("tinker" if base_url else "local")
    if base_url and text.partition(":")[0] not in PROVIDERS:
        text = f"tinker:{text}"
    try:
        ref = ModelRef.model_validate(text).model_copy(update={"base_url": base_url})
    except ValidationError:
        raise UsageError(f"--model: {text!r} is not a model; expected tinker:NAME or local:FOLDER") from None
    if not ref.is_trainable and ref.provider != "openai":
        expected = "expected tinker:NAME, local:FOLDER or openai:NAME"
        raise UsageError(
            f"doctor probes Tinker services and endpoints of OpenAI's API, not {ref.provider}; {expected}"
        )
    return ref
