"""Where requests for orders go."""

from django.urls import path

from . import views

urlpatterns = [
    path("", views.create),
    path("turnover", views.show_turnover),
    path("<int:id>", views.show),
    path("<int:id>/receipt", views.receipt),
    path("<int:id>/reminders", views.reminders),
]
