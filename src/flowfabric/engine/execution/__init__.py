"""Operations on executions: submit, claim, report, steer, read."""
