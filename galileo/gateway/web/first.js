// Asks for the first documents while the libraries of the page are still on their way.

import { collection, datasetsOf, firstDataset, prefetch } from "./api.js";
import { fragment } from "./fragment.js";

const prefetchSummary = (dataset) => dataset && prefetch(collection(dataset, "/summary"));

const collections = prefetch("collections");
if (fragment().dataset) prefetchSummary(fragment().dataset);
else collections.then((document) => document && prefetchSummary(firstDataset(datasetsOf(document))));
