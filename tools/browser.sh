#!/usr/bin/env bash
# Installs Chromium for the tests of pages, if there is none and this machine lets us. Never fails: without a browser
# those tests are left out, and say so.
for name in chromium chromium-browser google-chrome chrome; do
  if command -v "$name" >/dev/null; then
    echo "browser: $(command -v "$name")"
    exit 0
  fi
done
patient=(timeout 150 env DEBIAN_FRONTEND=noninteractive)
quick=(-qq -o Acquire::Retries=1 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10)
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null &&
  "${patient[@]}" apt-get "${quick[@]}" update >/dev/null 2>&1 &&
  "${patient[@]}" apt-get "${quick[@]}" install -y --no-install-recommends chromium >/dev/null 2>&1; then
  echo "browser: $(command -v chromium)"
else
  echo "browser: none, and none could be installed; the tests that look at pages are left out (apt install chromium)"
fi
