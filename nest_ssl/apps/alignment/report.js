
// Choosing a step.
function showStep(step) {
  for (const choice of document.querySelectorAll("select.step")) choice.value = step;
  for (const part of document.querySelectorAll("[data-step]")) part.hidden = part.dataset.step !== step;
}

for (const choice of document.querySelectorAll("select.step"))
  choice.addEventListener("change", () => showStep(choice.value));
const choice = document.querySelector("select.step");
if (choice) showStep(choice.value);
