import numpy as np
import pyarrow as pa


class SubscriptionIndex:
    def __init__(self, query):
        self.query = query
        self.rows = {}

    def __len__(self):
        return len(self.rows)

    @property
    def nbytes(self):
        return 100 * len(self.rows)

    def apply(self, changes):
        for row in changes.to_pylist():
            self.rows.pop(row["id"], None)
            if not row["deleted"]:
                self.rows[row["id"]] = row

    def match(self, obs):
        out = []
        for i, row in self.rows.items():
            q = self.query.bind_row(row)
            full = {
                n: obs.column(n)
                if n in obs.column_names
                else pa.nulls(obs.num_rows, self.query.schema.observation_schema.field(n).type)
                for n in self.query.schema.observation_schema.names
            }
            m = np.flatnonzero(q.match_observations(pa.table(full)))
            if len(m):
                out.append((row["broker"], m.tolist(), [i]))
        return pa.RecordBatch.from_arrays(
            [
                pa.array([o[0] for o in out], pa.string()),
                pa.array([o[1] for o in out], pa.list_(pa.int32())),
                pa.array([o[2] for o in out], pa.list_(pa.string())),
            ],
            names=["broker", "rows", "subscriptions"],
        )
