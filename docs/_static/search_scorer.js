// Pages of functions come first among the results of a search; pages for those who develop the library come last.
var Scorer = {
  score: (result) => {
    const [docname, , , , score] = result;
    if (docname.startsWith("reference/generated/")) return score + 30;
    return docname.startsWith("development/") ? score - 10 : score;
  },
  objNameMatch: 31,
  objPartialMatch: 16,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
