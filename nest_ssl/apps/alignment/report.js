
// Choosing a step, and searching the tables.
function showStep(step) {
  for (const choice of document.querySelectorAll("select.step")) choice.value = step;
  for (const part of document.querySelectorAll("[data-step]")) part.hidden = part.dataset.step !== step;
}

function find(name) {
  for (const table of document.querySelectorAll("table.values")) {
    let found = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !row.cells[1].textContent.toLowerCase().includes(name);
      found += !row.hidden;
    }
    const details = table.closest("details");
    details.querySelector(".none").hidden = found > 0;
    if (name) details.open = found > 0;
  }
}

for (const choice of document.querySelectorAll("select.step"))
  choice.addEventListener("change", () => showStep(choice.value));
const search = document.querySelector("input[type=search]");
search.addEventListener("input", () => find(search.value.trim().toLowerCase()));
const choice = document.querySelector("select.step");
if (choice) showStep(choice.value);
