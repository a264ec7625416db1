"""A Ray cluster of two nodes on this machine: says where, kills one for "kill"."""

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    each = {
        "num_cpus": int(sys.argv[1]),
        "object_store_memory": 80 << 20,
    }
    cluster = Cluster(
        initialize_head=True, head_node_args=each | {"include_dashboard": False}
    )
    nodes = [cluster.add_node(**each)]
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line == "kill\n":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        else:
            cluster.shutdown()
        sys.stdout.write("done\n")
        sys.stdout.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main()
