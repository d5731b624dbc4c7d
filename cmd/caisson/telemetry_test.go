package main

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
)

// TestTelemetrySettings: a fault in the user's file is an error, a fault in the
// environment a warning at the end. Headers' values are secrets.
func TestTelemetrySettings(t *testing.T) {
	for name, c := range map[string]struct {
		file       config.Telemetry
		env        environ
		err, warns string
		exports    bool
	}{
		"off":                 {},
		"by the environment":  {env: environ{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS=a=hidden-1"}, exports: true},
		"by the file":         {file: config.Telemetry{Endpoint: new("http://127.0.0.1:1"), Headers: map[string]string{"A": "$KEY"}}, env: environ{"KEY=hidden-1"}, exports: true},
		"a wrong variable":    {env: environ{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, warns: "unsupported protocol"},
		"a wrong address":     {file: config.Telemetry{Endpoint: new("collector:4317")}, err: "telemetry.endpoint"},
		"a variable not set":  {file: config.Telemetry{Endpoint: new("http://127.0.0.1:1"), Headers: map[string]string{"A": "$KEY"}}, err: "telemetry.headers.A"},
		"no exporter at all":  {env: environ{"OTEL_SDK_DISABLED=true"}, file: config.Telemetry{Endpoint: new("http://127.0.0.1:1")}},
		"environment, no key": {env: environ{"OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none"}},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			a := &app{environ: append(environ{"HOME=" + t.TempDir()}, c.env...), stderr: &stderr, terminal: func(any) bool { return false }}
			a.deps = deps{telemetry: &exporter{}, requirements: filepath.Join(t.TempDir(), "none")}
			s, err := loadSettings(a, config.File{Telemetry: c.file}, "")
			must(t, err)
			observe, err := s.openObserver()
			a.telemetry.closeExporter(t.Context(), a)
			if e, ok := errors.AsType[*config.Error](err); ok != (c.err != "") || ok && e.Where != c.err {
				t.Errorf("error %v, want one of %q", err, c.err)
			}
			if (observe != nil) != c.exports {
				t.Errorf("exports: %t, want %t", observe != nil, c.exports)
			}
			if c.warns == "" && stderr.Len() > 0 || !strings.Contains(stderr.String(), c.warns) || strings.Contains(stderr.String(), "hidden-1") {
				t.Errorf("printed %q, want %q", stderr.String(), c.warns)
			}
			if c.exports {
				var hidden []string
				for _, secret := range s.knownSecrets() {
					hidden = append(hidden, secret.Value)
				}
				if !slices.Contains(hidden, "hidden-1") {
					t.Errorf("the header is no secret: %q", hidden)
				}
			}
		})
	}
}
