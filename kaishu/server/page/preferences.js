/** What holds for all conversations: the settings that new ones begin with, and whether tokens are recorded. */

import { lasting } from "./kept.js";
import { cleanSettings } from "./settings.js";

const NAME = "kaishu.preferences";

export function readPreferences() {
  let found;
  try {
    found = JSON.parse(lasting.get(NAME));
  } catch {
    found = null;
  }
  return { settings: cleanSettings(found?.settings), recordTokens: found?.recordTokens ?? true };
}

export function writePreferences(preferences) {
  lasting.set(NAME, JSON.stringify(preferences));
}
