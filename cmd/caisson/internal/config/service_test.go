package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox"
)

// TestService: the image's or the configured program runs, and impossible services are
// refused with their key.
func TestService(t *testing.T) {
	for text, tt := range map[string]struct {
		want *sandbox.Service
		err  string
	}{
		"image: x": {},
		"image: x\nservice: {run: none, command: [a]}": {},
		"image: x\nservice: {run: image}":              {want: &sandbox.Service{StartTime: 5 * time.Minute}},
		"service: {command: [a, b], dir: /srv, as_agent: true, start_time: 1m}": {
			want: &sandbox.Service{Args: []string{"a", "b"}, Dir: "/srv", AsAgent: true, StartTime: time.Minute},
		},
		"image: x\nservice: {run: image, command: [a], health_check: {test: [NONE]}}": {
			want: &sandbox.Service{StartTime: 5 * time.Minute, HealthCheck: &images.HealthCheck{Test: []string{"NONE"}}},
		},
		"service: {command: [a], health_check: {test: [CMD, b], interval: 2s, timeout: 3s, start_period: 4s, start_interval: 5s, retries: 6}}": {
			want: &sandbox.Service{Args: []string{"a"}, StartTime: 5 * time.Minute, HealthCheck: &images.HealthCheck{
				Test: []string{"CMD", "b"}, Interval: 2 * time.Second, Timeout: 3 * time.Second, StartPeriod: 4 * time.Second, StartInterval: 5 * time.Second, Retries: 6,
			}},
		},
		"service: {run: image}":                                         {err: "image host has no ENTRYPOINT"},
		"service: {run: command}":                                       {err: "service.command is missing"},
		"service: {run: other}":                                         {err: "none of none, image, command"},
		"service: {command: [a], dir: x}":                               {err: "not an absolute path"},
		"service: {command: [a], health_check: {retries: 2}}":           {err: "it has no test"},
		"service: {command: [a], health_check: {test: [EVAL, b]}}":      {err: "want CMD and a program"},
		"service: {command: [a], health_check: {test: [CMD, \"\"]}}":    {err: "want CMD and a program"},
		"service: {command: [a], start_time: 48h}":                      {err: "want at most 24h"},
		"service: {command: [a], health_check: {interval: -1s}}":        {err: "invalid duration"},
		"service: {command: [\"\"]}":                                    {err: "no name"},
		"service: {command: [a], health_check: {test: [CMD-SHELL]}}":    {err: "want CMD and a program"},
		"service: {command: [a], health_check: {retries: 0, test: []}}": {err: "invalid count"},
	} {
		c, err := Load(Options{Path: write(t, "config.yaml", text)})
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: error %v, want %q", text, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if diff := cmp.Diff(tt.want, c.UserService(), cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Watch" }, cmp.Ignore())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}
