// What HTML and CSS cannot do alone: the language, the chosen step, the search, and reading a chart.
"use strict";

function speak(language) {
  document.documentElement.lang = language;
  for (const button of document.querySelectorAll("[data-language]"))
    button.setAttribute("aria-pressed", String(button.dataset.language === language));
}

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

function read(event) {
  const column = event.target.closest(".columns > rect");
  if (column) event.currentTarget.querySelector("output").textContent = column.textContent.replaceAll("\n", " · ");
}

for (const button of document.querySelectorAll("[data-language]"))
  button.addEventListener("click", () => speak(button.dataset.language));
for (const choice of document.querySelectorAll("select.step"))
  choice.addEventListener("change", () => showStep(choice.value));
for (const figure of document.querySelectorAll("figure")) {
  figure.addEventListener("pointerover", read);
  figure.addEventListener("click", read);
}
const search = document.querySelector("input[type=search]");
search.addEventListener("input", () => find(search.value.trim().toLowerCase()));

speak(navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
const choice = document.querySelector("select.step");
if (choice) showStep(choice.value);
