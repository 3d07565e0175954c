// For every page: switching the language, and reading the values of a chart.
"use strict";

function speak(language) {
  document.documentElement.lang = language;
  for (const button of document.querySelectorAll("[data-language]"))
    button.setAttribute("aria-pressed", String(button.dataset.language === language));
}

function read(event) {
  const column = event.target.closest(".columns > rect");
  if (column) event.currentTarget.querySelector("output").textContent = column.textContent.replaceAll("\n", " · ");
}

for (const button of document.querySelectorAll("[data-language]"))
  button.addEventListener("click", () => speak(button.dataset.language));
for (const figure of document.querySelectorAll("figure")) {
  figure.addEventListener("pointerover", read);
  figure.addEventListener("click", read);
}
speak(navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
