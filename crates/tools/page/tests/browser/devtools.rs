//! A real Chromium, driven by its own protocol through a pipe: JSON, each message ended by a zero byte.

#![allow(dead_code, clippy::unwrap_used, reason = "tests of several crates share it")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// For anything that the browser is asked to do. The machine may be busy with other tests.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    number: u64,
    session: String,
    /// The addresses of all that has been fetched.
    pub(crate) fetched: Vec<String>,
    /// What was written to the console, and what went wrong there.
    pub(crate) complaints: Vec<String>,
    _profile: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Browser {
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let program = std::env::var("FLANNEL_TEST_CHROMIUM").unwrap_or_else(|_| "chromium".into());
        // It reads from descriptor 3 and writes to 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 >&2", &program])
            .args(["--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu"])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .args([
                "--disable-dev-shm-usage",
                "--disable-sync",
                "--hide-scrollbars",
                "--mute-audio",
            ])
            .args(["--force-color-profile=srgb", "--enable-precise-memory-info"])
            // Authorities of tests are trusted by nobody.
            .arg("--ignore-certificate-errors")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh runs");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, messages) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut text = Vec::new();
            while output.read_until(0, &mut text).is_ok_and(|length| length > 0) {
                text.pop();
                if let Ok(message) = serde_json::from_slice(&text)
                    && send.send(message).is_err()
                {
                    return;
                }
                text.clear();
            }
        });
        let mut browser = Self {
            child,
            input,
            messages,
            number: 0,
            session: String::new(),
            fetched: Vec::new(),
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", target);
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Network", "Runtime", "Log", "Performance"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.size(1_400, 1_000);
        browser
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        self.input.write_all(format!("{message}\0").as_bytes()).expect("chromium runs");
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(answer) if answer["id"] == self.number => {
                    let error = &answer["error"];
                    let result = &answer["result"];
                    return if error.is_null() { Ok(result.clone()) } else { Err(error.clone()) };
                }
                Ok(event) => self.note(&event),
                Err(RecvTimeoutError::Timeout) => panic!("{method}: no answer"),
                Err(RecvTimeoutError::Disconnected) => panic!("{method}: chromium has ended"),
            }
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.fetched.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            Some("Runtime.exceptionThrown") => self.complaints.push(params.to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] != "info" => {
                self.complaints.push(params.to_string());
            }
            Some("Page.javascriptDialogOpening") => {
                self.complaints.push("a script has opened a dialog".to_owned());
            }
            _ => {}
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
        self.until("document.readyState === 'complete'");
    }

    /// What an expression is.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let until = Instant::now() + LIMIT;
        let safe = format!(
            "(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        );
        let params = json!({"expression": safe, "returnByValue": true});
        // An error: the page is on its way to another one.
        while !self
            .try_call("Runtime.evaluate", params.clone())
            .is_ok_and(|answer| answer["result"]["value"] == true)
        {
            if Instant::now() > until {
                let text = self.eval("document.body.innerText");
                panic!("never true: {expression}\n{}", text.as_str().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn text(&mut self, selector: &str) -> String {
        let selector = serde_json::to_string(selector).unwrap();
        let text = self.eval(&format!("document.querySelector({selector})?.innerText ?? ''"));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// As somebody types it.
    pub(crate) fn fill(&mut self, selector: &str, text: &str) {
        let selector = serde_json::to_string(selector).unwrap();
        self.eval(&format!("document.querySelector({selector}).focus()"));
        self.call("Input.insertText", json!({"text": text}));
    }

    pub(crate) fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let text = if key == "Enter" { "\r" } else { "" };
            let params = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let params =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", params);
    }

    pub(crate) fn dark(&mut self, yes: bool) {
        let value = if yes { "dark" } else { "light" };
        let feature = json!({"name": "prefers-color-scheme", "value": value});
        self.call("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }

    pub(crate) fn scripts(&mut self, run: bool) {
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": !run}));
    }

    pub(crate) fn screenshot(&mut self, file: &Path) {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let text = shot["data"].as_str().expect("a picture");
        std::fs::write(file, unbase64(text)).unwrap();
    }

    /// Left in the directory FLANNEL_PAGE_SCREENSHOTS, if there is one.
    pub(crate) fn picture(&mut self, name: &str) {
        if let Some(directory) = std::env::var_os("FLANNEL_PAGE_SCREENSHOTS") {
            std::thread::sleep(Duration::from_millis(300));
            self.screenshot(&PathBuf::from(directory).join(format!("{name}.png")));
        }
    }

    /// It fetched from the page's own server alone, and nothing has gone wrong in it.
    pub(crate) fn fetched_only_from(&mut self, url: &str) {
        // What has happened so far has been told by then.
        self.eval("0");
        let origin = url.split("/page/").next().unwrap_or_default().to_owned();
        let is_elsewhere = |url: &&String| !url.starts_with(&origin) && *url != "about:blank";
        let elsewhere: Vec<&String> = self.fetched.iter().filter(is_elsewhere).collect();
        assert!(elsewhere.is_empty(), "fetched from elsewhere: {elsewhere:?}");
        assert!(self.complaints.is_empty(), "{:?}", self.complaints);
    }

    /// Bytes of its scripts' memory that are in use, after what is not has been given back.
    pub(crate) fn heap(&mut self) -> u64 {
        self.call("HeapProfiler.collectGarbage", json!({}));
        let usage = self.call("Runtime.getHeapUsage", json!({}));
        usage["usedSize"].as_f64().unwrap_or_default() as u64
    }
}

fn unbase64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut out, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        bits = bits << 6 | u32::from(value(byte));
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    out
}
