"""The orders."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012 - as Django writes it
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("customer", models.CharField(max_length=100)),
                ("cents", models.PositiveIntegerField()),
                ("state", models.CharField(max_length=20, default="new")),
                ("reminders", models.PositiveIntegerField(default=0)),
                ("run_id", models.CharField(max_length=100, default="")),
            ],
        )
    ]
