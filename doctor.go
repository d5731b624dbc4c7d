package caisson

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/oci"
)

// Finding is the result of one check of [Doctor].
type Finding struct {
	// Check names the check. Result is ok, warning, failed, or absent (missing, but
	// not needed).
	Check, Result string
	// Detail describes what was found, and Hint what to do about it. Either may be
	// "".
	Detail, Hint string
}

// Doctor checks whether this machine can run sessions with these options: kernel,
// backends, state directory and image. It starts a sandbox on an empty directory and
// checks its isolation from inside. It calls no model, needs no workspace, and
// downloads nothing. It returns an error for invalid options; faults of the machine
// are findings.
func Doctor(ctx context.Context, o Options) ([]Finding, error) {
	o.Workspace = cmp.Or(o.Workspace, ".")
	setup, err := o.setup()
	if err != nil {
		return nil, fmt.Errorf("check this machine: %w", err)
	}
	h, err := NewHost(o.HostOptions)
	if err != nil {
		return nil, fmt.Errorf("check this machine: %w", err)
	}
	defer func() { _ = h.Close() }() // nothing uses the connections
	backend := cmp.Or(o.Backend, "auto")
	if err := o.checkIsolation(backend); backend != "auto" && err != nil {
		return nil, fmt.Errorf("check this machine: %w", err)
	}
	checked := h.CheckImage(ctx, setup.Image)
	found := append(CheckMachine(), doctor.CheckState(h.o.StateDir, []string{os.TempDir()}), checked)
	found = append(found, h.CheckBackends(ctx, backend)...)
	found = append(found, doctor.SmokeTest{
		Setup: setup, ImageOK: checked.Result == doctor.OK, Mode: cmp.Or(o.Mode, sandbox.ModeBind), StateDir: h.o.StateDir,
		Choose: func(ctx context.Context) (sandbox.Backend, []string, error) {
			var notes []string
			b, _, err := h.Choose(ctx, backend, func(note string) { notes = append(notes, note) })
			return b, notes, err
		},
	}.Run(ctx)...)
	findings := make([]Finding, 0, len(found))
	for _, f := range found {
		out := Finding{Check: f.Check, Result: string(f.Result), Detail: f.Detail, Hint: f.Hint}
		if f.Err != nil && out.Detail == "" {
			out.Detail = f.Err.Error()
		}
		if out.Hint == "" && f.Advice != "" {
			out.Hint = string(f.Advice)
			if f.Subject != "" {
				out.Hint += ": " + f.Subject
			}
		}
		findings = append(findings, out)
	}
	return findings, nil
}

// CheckMachine checks the kernel and this process's limits.
func CheckMachine() []doctor.Finding {
	return doctor.CheckMachine(doctor.Machine{
		Cgroups: func() (doctor.Cgroups, error) {
			info, err := oci.Cgroups()
			return doctor.Cgroups(info), err
		},
		UserNamespace: oci.TryUserNamespace, Mount: oci.TryMount, Landlock: oci.Landlock,
	})
}

// CheckBackends checks all backends. asked is the one to use, or auto.
func (h *Host) CheckBackends(ctx context.Context, asked string) []doctor.Finding {
	if asked == "auto" && h.o.Isolation == sandbox.IsolationProcess {
		asked = string(oci.GVisor)
	}
	return doctor.CheckBackends(ctx, doctor.Backends{
		Names: backendNames, Asked: asked, Allowed: h.o.allowsBackend, Open: h.Backend,
	})
}

// CheckImage checks whether an image is on this machine.
func (h *Host) CheckImage(ctx context.Context, ref images.Reference) doctor.Finding {
	return doctor.CheckImage(ctx, doctor.Image{
		Name: ref.String(), Reference: ref, EngineID: h.engineImageID, Builder: h.findBuilder, Stored: h.listStoredImages,
		Absent: func(ctx context.Context) ([]host.Absent, error) { return h.FindAbsentPrograms(ctx, ref, "") },
	})
}

func (h *Host) engineImageID(ctx context.Context, name string) string {
	e := h.ImageEngine(ctx)
	if e == nil {
		return ""
	}
	defer func() { _ = e.Close() }() // nothing was changed
	id, err := e.ImageID(ctx, name)
	if err != nil {
		return ""
	}
	return id
}

// findBuilder returns the program that would build an image, or "".
func (h *Host) findBuilder(ctx context.Context) string {
	if e := h.ImageEngine(ctx); e != nil {
		_ = e.Close() // nothing was changed
		return "the Docker engine"
	}
	buildctl, _ := h.programs.Find(optional(h.o.Buildctl), "buildctl") // "" if not found
	buildah, _ := h.programs.Find(optional(h.o.Buildah), "buildah")
	return cmp.Or(buildctl, buildah)
}

func (h *Host) listStoredImages(ctx context.Context) ([]images.Image, error) {
	if _, err := os.Stat(filepath.Join(h.o.CacheDir, "images")); h.o.CacheDir == "" || err != nil {
		return nil, nil
	}
	s, err := h.Images(ctx)
	if err != nil {
		return nil, err
	}
	return s.List(ctx)
}
