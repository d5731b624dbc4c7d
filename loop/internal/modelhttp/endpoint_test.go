package modelhttp

import (
	"strings"
	"testing"
)

// TestCheckBaseURL checks which URLs are refused, and that no message has a secret.
func TestCheckBaseURL(t *testing.T) {
	for text, want := range map[string]string{
		"https://api.example.com/v1":     "",
		"http://localhost:11434/v1":      "",
		"https://user:hunter2@host/v1":   "holds credentials",
		"https://host:hunter2/v1":        "can't be parsed",
		"ftp://host/v1":                  "not an http or https URL",
		"localhost/v1":                   "such as https://good",
		"file:///etc/passwd":             "not an http or https URL",
		"https://?key=hunter2":           "not an http or https URL",
		"https://host/v1?api_key=secret": "",
	} {
		err := checkBaseURL(text, "https://good")
		if want == "" && err == nil {
			continue
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
