// Applies the statements that come as lines of JSON, one transaction for each line, and prints
// which rows a live query of PGlite has gained and lost: `node pglite_live.mjs DIRECTORY QUERY KEY`.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [directory, schema, query, key] = process.argv.slice(2);
const resolve = createRequire(join(directory, "package.json")).resolve;
const load = (name) => import(pathToFileURL(resolve(name)).href);
const { PGlite } = await load("@electric-sql/pglite");
const { live } = await load("@electric-sql/pglite/live");

const database = await PGlite.create({ extensions: { live } });
await database.exec(schema);
let changes = [];
const following = await database.live.changes({
  query,
  key,
  callback: (more) => changes.push(...more),
});
changes = [];
for await (const line of createInterface({ input: process.stdin })) {
  const statements = JSON.parse(line);
  await database.transaction(async (transaction) => {
    for (const statement of statements) await transaction.exec(statement);
  });
  await following.refresh();
  const of = (operation) =>
    changes.filter((change) => change.__op__ === operation).map((change) => change[key]);
  console.log(JSON.stringify({ entered: of("INSERT"), left: of("DELETE") }));
  changes = [];
}
await database.close();
