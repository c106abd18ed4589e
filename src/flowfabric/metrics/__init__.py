"""Prometheus metrics of a process. Needs the extra `prometheus`.

`flowfabric server` has them at `/metrics`, `flowfabric worker --metrics-listen` at an address of
its own. In a process of yours, `serve` listens, `metrics_app` is an ASGI application, and `enable`
alone fills `REGISTRY`, which any exporter of prometheus-client can collect.
"""

from flowfabric.metrics.exposition import CONTENT_TYPE as CONTENT_TYPE
from flowfabric.metrics.exposition import metrics_app as metrics_app
from flowfabric.metrics.exposition import render as render
from flowfabric.metrics.instruments import REGISTRY as REGISTRY
from flowfabric.metrics.listener import serve as serve
from flowfabric.metrics.recorder import disable as disable
from flowfabric.metrics.recorder import enable as enable

__all__ = ["CONTENT_TYPE", "REGISTRY", "disable", "enable", "metrics_app", "render", "serve"]
