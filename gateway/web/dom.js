// Elements made, and changed only where something is new: what has the focus keeps it, and nothing flickers.
// Text is always text: nothing here parses HTML, and the page's policy would refuse it.

export const byId = (id) => document.getElementById(id);

// make("p", { className: "x", "aria-label": "y" }, "text", child, …)
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "className") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else setAttribute(element, name, value);
  }
  element.append(...children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

export function setHidden(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden;
}

export function setDisabled(element, disabled) {
  if (element.disabled !== disabled) element.disabled = disabled;
}

export function setWidth(element, part) {
  const width = `${Math.round(Math.min(Math.max(part, 0), 1) * 1000) / 10}%`;
  if (element.style.width !== width) element.style.width = width;
}

// Makes a list's children those of `things`, in order; each is made once by its key and updated from then on.
export class Keyed {
  constructor(list, make, update) {
    this.list = list;
    this.make = make;
    this.update = update;
    this.views = new Map();
  }

  show(things, keyOf) {
    const keys = new Set(things.map(keyOf));
    for (const [key, view] of this.views) {
      if (keys.has(key)) continue;
      view.root.remove();
      this.views.delete(key);
    }
    let place = this.list.firstElementChild;
    for (const thing of things) {
      const key = keyOf(thing);
      let view = this.views.get(key);
      if (!view) {
        view = this.make(thing);
        this.views.set(key, view);
      }
      this.update(view, thing);
      if (view.root === place) place = place.nextElementSibling;
      else this.list.insertBefore(view.root, place);
    }
  }
}
