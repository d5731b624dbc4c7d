package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/server"
)

// TestAskSandbox: clients choose by name from serve.sandboxes, and only learn the
// names.
func TestAskSandbox(t *testing.T) {
	user := write(t, "config.yaml", `
mounts: [{from: /srv/common, to: /common}]
resources: {memory: 1GiB}
serve:
  sandboxes:
    images: {go: "rootfs:/srv/secret/go", py: "python:3"}
    mounts: {data: {from: /srv/secret/data, to: /data, read_only: true}}
    resources: {big: {memory: 8GiB, cpus: 4}, small: {memory: 256MiB}}
`)
	load := func(project *ProjectFile) Config {
		c, err := Load(Options{Path: user, Project: project})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := load(nil)
	f, err := c.AskSandbox(server.NewSandbox{Mode: "overlay", Image: "go", Resources: "big", Mounts: []string{"data"}})
	if err != nil || *f.Mode != "overlay" || *f.Image != "rootfs:/srv/secret/go" || *f.Resources.Memory != 8<<30 || len(f.Mounts) != 2 || *f.Mounts[1].From != "/srv/secret/data" || !f.Mounts[1].isReadOnly() {
		t.Errorf("asked for all: %+v, %v", f, err)
	}
	if f, err := c.AskSandbox(server.NewSandbox{}); err != nil || f.Image != nil || f.Mounts != nil || f.Resources.Memory != nil {
		t.Errorf("asked for nothing: %+v, %v", f, err)
	}
	for _, tt := range []struct {
		asked server.NewSandbox
		names string
	}{
		{server.NewSandbox{Image: "rootfs:/etc"}, "go, py"},
		{server.NewSandbox{Image: "Go"}, "go, py"},
		{server.NewSandbox{Mounts: []string{"data", "/etc"}}, "data"},
		{server.NewSandbox{Mounts: []string{"data", "data"}}, "name it once"},
		{server.NewSandbox{Resources: "huge"}, "big, small"},
	} {
		_, err := c.AskSandbox(tt.asked)
		e, ok := errors.AsType[*Error](err)
		if !ok || !strings.Contains(e.Hint, tt.names) || strings.Contains(e.Error()+e.Hint, "secret") {
			t.Errorf("%+v: %v", tt.asked, err)
		}
	}
	// A trusted workspace's demands stay.
	c = load(project("resources: {memory: 512MiB}"))
	if f, err := c.AskSandbox(server.NewSandbox{Resources: "big"}); err != nil || *f.Resources.Memory != 512<<20 {
		t.Errorf("above the workspace's: %+v, %v", f.Resources, err)
	}
	if f, err := c.AskSandbox(server.NewSandbox{Resources: "small"}); err != nil || *f.Resources.Memory != 256<<20 {
		t.Errorf("below the workspace's: %+v, %v", f.Resources, err)
	}
	bad := write(t, "config.yaml", "serve: {sandboxes: {mounts: {data: {from: data, to: /data}}}}")
	if _, err := Load(Options{Path: bad}); err == nil {
		t.Error("a relative directory is offered")
	}
}
