"""FlowFabric in a Django project: `INSTALLED_APPS = [..., "flowfabric.integrations.django"]`.

The tasks are in the module `tasks` of each app, registered with `fabric` of this package, and run
by `manage.py flowfabric_worker`. The runs are kept in the project's database, whose tables
`manage.py migrate` makes. Nothing is started in a web process.
"""

from flowfabric.integrations.django.fabric import DjangoFabric, fabric, get_fabric
from flowfabric.integrations.django.transactions import submit_on_commit

__all__ = ["DjangoFabric", "fabric", "get_fabric", "submit_on_commit"]
