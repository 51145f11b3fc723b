/** What holds for all conversations: the settings that new ones begin with, and whether tokens are recorded. */

import { cleanSettings } from "./settings.js";

const NAME = "kaishu.preferences";

export function readPreferences() {
  let found;
  try {
    found = JSON.parse(localStorage.getItem(NAME));
  } catch {
    found = null;
  }
  return { settings: cleanSettings(found?.settings), recordTokens: found?.recordTokens ?? true };
}

export function writePreferences(preferences) {
  localStorage.setItem(NAME, JSON.stringify(preferences));
}
