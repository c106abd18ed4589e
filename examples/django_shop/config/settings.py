"""The settings of the project."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

DEBUG = False
SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying it out")
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
INSTALLED_APPS = ["flowfabric.integrations.django", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True


def database(name: str) -> dict[str, object]:
    """A SQLite file, or the Postgres database that a URL names."""
    if not name.startswith("postgresql://"):
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": Path(name).absolute(),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        }
    url = urlsplit(name)
    socket = dict(part.split("=", 1) for part in url.query.split("&") if part)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(url.path.removeprefix("/")),
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": url.hostname or unquote(socket.get("host", "")),
        "PORT": str(url.port or ""),
        "CONN_MAX_AGE": 60,
    }


DATABASES = {"default": database(os.environ.get("DATABASE", "shop.db"))}
