"""Where requests go."""

from django.urls import include, path

urlpatterns = [path("orders/", include("shop.urls"))]
