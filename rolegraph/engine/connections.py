"""Settings of HTTP clients: the proxies and certificates that the environment names.

Every client is made with `client_options`. Calls to this machine never use a proxy, and over `http` no
certificates. For other calls, an environment variable that cannot be used is an error with its name:
libraries raise errors of many types for it, and most do not name the variable.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rolegraph.engine.errors import UsageError, first_line
from rolegraph.engine.secrets import without_secrets

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator

CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
"""Variables for a TLS context: certificates to trust, and a file for the keys of sessions."""
_CERTIFICATES = "expected one with certificates, or nothing"
_removed: dict[str, str] = {}
"""Values of the variables that `bypass_proxies` has removed from the environment."""
_NO_PROXY = ("NO_PROXY", "no_proxy")
_A_PROXY = "expected the URL of a proxy, such as http://proxy.example:3128, or nothing"


_LIBRARIES = {"httpx", "httpx2", "httpcore", "openai", "urllib3", "huggingface_hub", "tinker", "mcp"}
"""Libraries that log URLs, some of them with a key in the query."""


def _cut_secrets_of_logs() -> None:
    """Remove secrets from all log messages of HTTP libraries, before any handler gets them."""
    make_record = logging.getLogRecordFactory()

    def record(*args: Any, **options: Any) -> logging.LogRecord:
        log_record = make_record(*args, **options)
        if log_record.name.partition(".")[0] in _LIBRARIES:
            log_record.msg, log_record.args = without_secrets(log_record.getMessage()), None
        return log_record

    logging.setLogRecordFactory(record)


_cut_secrets_of_logs()


def is_loopback(host: str) -> bool:
    """Return True if a host is a loopback address or `localhost`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_here(url: str) -> bool:
    """Return True if a URL is one of this machine."""
    return is_loopback(urlsplit(url).hostname or "")


def client_options(url: str) -> dict[str, Any]:
    """Return the options of an httpx client whose calls go to one URL.

    Args:
        url: A valid URL of the calls.

    Raises:
        UsageError: A variable of the environment names a proxy or certificates that cannot be used.
    """
    return {"trust_env": False, "proxy": proxy_for(url), "verify": tls_context(url)}


def proxy_for(url: str) -> str | None:
    """Return the URL of the proxy for calls to a URL; None without a proxy. Raises UsageError for an invalid
    proxy."""
    variable = _proxy_variable(url)
    if not variable:
        return None
    value = os.environ[variable].strip()
    proxy = value if "://" in value else f"http://{value}"
    if fault := _fault_of_proxy(proxy):
        masked_url = re.sub(r"[^/]*@", "", value)
        raise UsageError(f"{variable}: {masked_url!r} {fault}")
    return proxy


def _fault_of_proxy(proxy: str) -> str:
    """Return the reason why the URL of a proxy cannot be used; empty for a usable one."""
    import httpx

    try:
        parsed_url = httpx.Proxy(proxy).url
    except (ValueError, httpx.InvalidURL):
        return f"is not a proxy that can be used; {_A_PROXY}"
    if not parsed_url.host or not 0 < (1080 if parsed_url.port is None else parsed_url.port) < 1 << 16:
        return f"has no host or port; {_A_PROXY}"
    if parsed_url.scheme.startswith("socks") and find_spec("socksio") is None:
        return "needs the library socksio: pip install 'httpx[socks]'"
    return ""


def _proxy_variable(url: str) -> str:
    """Return the name of the variable with the proxy for calls to a URL; empty without a proxy."""
    url_parts = urlsplit(url)
    if is_here(url) or _bypassed(url_parts.netloc.rpartition("@")[2]):
        return ""
    proxies = getproxies()
    scheme = next((scheme for scheme in (url_parts.scheme, "all") if proxies.get(scheme)), None)
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), *os.environ)
    return next((name for name in names if name.lower() == f"{scheme}_proxy" and os.environ.get(name)), "")


def _bypassed(host: str) -> bool:
    try:
        return bool(proxy_bypass(host))
    except ValueError:  # of a NO_PROXY that is no list of hosts
        return False


def tls_context(url: str) -> ssl.SSLContext:
    """Return the TLS context for a URL; raises UsageError for certificates that cannot be read."""
    if urlsplit(url).scheme in ("http", "ws") and is_here(url):
        return _empty_context()
    return _context(*((name, _certificates(name)) for name in CERTIFICATES))


def _certificates(name: str) -> str:
    """Return the value of a variable of `CERTIFICATES`, even if `bypass_proxies` has removed it; empty
    without a value."""
    return os.environ.get(name) or _removed.get(name, "")


@cache
def _empty_context() -> ssl.SSLContext:
    """Return a context that trusts no certificate, for calls without TLS: making a full context takes 20
    ms."""
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _context(*variables: tuple[str, str]) -> ssl.SSLContext:
    """Return a TLS context from the environment, after a check of its `variables`; raises UsageError."""
    import httpx

    (_, file), (_, folders), _ = variables
    if file and not Path(file).is_file():
        raise UsageError(f"SSL_CERT_FILE: there is no file {file!r}; {_CERTIFICATES}")
    if folders and not any(Path(folder).is_dir() for folder in folders.split(os.pathsep)):
        raise UsageError(f"SSL_CERT_DIR: there is no folder {folders!r}; {_CERTIFICATES}")
    try:
        return httpx.create_ssl_context()
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        set_names = [name for name, value in variables if value]
        guilty_names = [name for name, value in variables if value and value in str(error)] or set_names
        raise UsageError(f"{' or '.join(guilty_names) or 'certificates'}: cannot be used: {error}") from error


def bypass_proxies(url: str) -> None:
    """Add the host of a URL of this machine to NO_PROXY, so that calls and keys to it are sent to no proxy.

    It is set for the whole process, for libraries that make their own clients: the Tinker SDK reads nothing
    else. The SDK cannot make a client, not even for `http`, if SSL_CERT_FILE and SSL_CERT_DIR name no
    certificates; such variables are removed from the environment, and `tls_context` still refuses their
    values.
    """
    host = urlsplit(url).hostname or ""
    if not is_loopback(host):
        return
    for variable in _NO_PROXY:
        hosts = [name for name in os.environ.get(variable, "").split(",") if name]
        if host not in hosts and "*" not in hosts:
            os.environ[variable] = ",".join((*hosts, host))
    file, folders = (os.environ.get(name, "") for name in CERTIFICATES[:2])
    if not any(Path(path).exists() for path in (file, *folders.split(os.pathsep)) if path):
        _removed.update((name, os.environ.pop(name)) for name in CERTIFICATES[:2] if name in os.environ)


@contextmanager
def naming_variables(*prefixes: str) -> Generator[None]:
    """Convert an error of a block that imports a library to UsageError if the value of an environment
    variable caused it.

    Args:
        prefixes: Prefixes of the names of the variables that the library reads.
    """
    try:
        yield
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        given_variables = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
        mentioned_names = [name for name, value in given_variables.items() if repr(value) in str(error)]
        if not mentioned_names:
            raise
        raise UsageError(f"{' or '.join(mentioned_names)}: cannot be used: {first_line(error)}") from error


def route(url: str) -> str:
    """Describe the proxy and certificate variables that a call to `url` uses, as ` (by the proxy of X)`;
    empty if it uses none."""
    proxy = _proxy_variable(url)
    is_encrypted = urlsplit(url).scheme in ("https", "wss")
    certificate_variables = [name for name in CERTIFICATES[:2] if is_encrypted and _certificates(name)]
    notes = [f"by the proxy of {proxy}"] if proxy else []
    notes += [f"with the certificates of {certificate_variables[0]}"] if certificate_variables else []
    return f" ({', '.join(notes)})" if notes else ""
