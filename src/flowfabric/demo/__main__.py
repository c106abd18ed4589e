"""`python -m flowfabric.demo`, and `python -m flowfabric.demo worker URL NAME` for its workers."""

import sys

from flowfabric.demo import play, worker


def main(arguments: list[str]) -> int:
    match arguments:
        case []:
            return play.main()
        case ["worker", url, name]:
            return worker.main(url, name)
        case _:
            print("usage: python -m flowfabric.demo [worker URL NAME]", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
