"""The Django app: it imports the tasks, and makes FlowFabric's tables after `manage.py migrate`."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from flowfabric.integrations.django.fabric import get_fabric
from flowfabric.integrations.django.schema import make_tables
from flowfabric.integrations.django.settings import store_url


class FlowFabricConfig(AppConfig):
    """The app `flowfabric.integrations.django`."""

    name = "flowfabric.integrations.django"
    label = "flowfabric"
    verbose_name = "FlowFabric"

    def ready(self) -> None:
        """Imports the module `tasks` of every app. No worker is started: that is the command's."""
        get_fabric()
        autodiscover_modules("tasks")
        post_migrate.connect(make_tables, sender=self)
        checks.register(check_store, checks.Tags.database)


def check_store(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[checks.CheckMessage]:
    """Whether the settings name a store, for `manage.py check --database default`."""
    try:
        store_url()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="flowfabric.E001")]
    return []
