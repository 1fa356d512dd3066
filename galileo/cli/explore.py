"""`galileo sparql`: explore a result as RDF."""

from __future__ import annotations

import click

from galileo.cli.output import failing_well
from galileo.cli.session import Session, json_option


@click.command()
@click.argument("dataset")
@click.argument("sparql_query")
@click.option("--query", default="", help="CQL2; only its result is explored.")
@click.option("--timeout", default=30.0, show_default=True, help="Seconds.")
@json_option
@click.pass_obj
@failing_well
def sparql(
    session: Session, *, dataset: str, sparql_query: str, query: str, timeout: float
) -> None:
    """Ask SPARQL over the labels that match a query; see docs/rdf.md for the terms.

    \b
    Example:
      galileo sparql nam "SELECT ?cell (COUNT(*) AS ?n) WHERE { ?p g:geohash ?cell }
          GROUP BY ?cell ORDER BY DESC(?n) LIMIT 10" --query "temperature > 290"
    """
    with session.client() as client:
        labels = client.query(dataset, query)
    result = labels.sparql(sparql_query, timeout_s=timeout)
    if result.kind == "boolean":
        session.output.value({"boolean": bool(result)}, words="yes" if result else "no")
    elif result.kind == "triples":
        session.output.value({"ntriples": result.triples}, words=result.triples)
    else:
        session.output.rows(result.rows, empty="No solutions.")
