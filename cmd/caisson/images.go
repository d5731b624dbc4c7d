package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/store"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/doctor"
)

func newImagesCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "images", Short: "List, fetch, copy from and remove the images that sandboxes run on",
	}, newImagesListCommand(a), newImagesPullCommand(a), newImagesExportCommand(a), newImagesRemoveCommand(a), newImagesPruneCommand(a))
}

func newImagesListCommand(a *app) *cobra.Command {
	var f struct {
		JSON bool `flag:"json" doc:"write a JSON array"`
	}
	return newCommand(&cobra.Command{
		Use: "ls [flags]", Short: "List the images of the cache", Args: noArgs,
		Long: `List the images of the cache, below $XDG_CACHE_HOME/caisson/images.

DIGEST is the pinned digest, which each start uses until caisson images pull renews it. USED is when
the last session on the image ended, or "now" if one is running.
`,
		Example: "  caisson images ls\n  caisson images ls --json | jq -r '.[].digest'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withImages(cmd.Context(), a, nil, nil, func(s *store.Store, _ *caisson.Host) error {
				list, err := s.List(cmd.Context())
				if err != nil {
					return err
				}
				return showImages(a, list, f.JSON)
			})
		},
	}, &f, usesConfig, statuses{exitFailed: imagesFailed})
}

func newImagesPullCommand(a *app) *cobra.Command {
	return newCommand(&cobra.Command{
		Use: "pull REF...", Short: "Fetch images and pin their names to the present digests",
		Long: `Resolve each name again, pin it to its present digest, fetch and unpack the image.

A start uses the pinned digest of a name without asking a registry; the first start on a name pins it.
So pull renews an image, and prepares a machine to work without network. Running sessions keep their
image. Names, oci-layout:DIR, docker-archive:FILE and build:DIR can be pulled.
`,
		Example: "  caisson images pull debian:bookworm-slim\n  caisson images pull localhost:5000/team/tools@sha256:…",
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := imageArguments(args)
			if err != nil {
				return err
			}
			return fetchImages(cmd.Context(), a, refs, func(ctx context.Context, s *store.Store, pulled func()) error {
				for _, ref := range refs {
					got, err := s.Pull(ctx, ref)
					pulled()
					if err == nil {
						err = a.say("%s %s", ref, got.Digest)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}, nil, usesConfig|interruptible, fetchExits)
}

// fetchImages calls do with the image store, if the requirements allow the images. It
// shows the progress of downloads until do calls pulled.
func fetchImages(ctx context.Context, a *app, refs []images.Reference, do func(ctx context.Context, s *store.Store, pulled func()) error) error {
	p := newPulling(a)
	defer p.Close()
	ctx, _, _, stop := a.handleInterrupts(ctx, func(string) {})
	defer stop()
	err := withImages(ctx, a, p.Report, refs, func(s *store.Store, _ *caisson.Host) error { return do(ctx, s, p.Close) })
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	return nil
}

func newImagesExportCommand(a *app) *cobra.Command {
	var f struct {
		Path string `flag:"path" doc:"directory of the image (default its WORKDIR)"`
	}
	return newCommand(&cobra.Command{
		Use: "export [flags] REF DIR", Short: "Copy a directory of an image, such as its WORKDIR", Args: wantArgs(2, 2, "an image and a directory, such as team/task:1 ./task"),
		Long: `Copy a directory of an image, by default its WORKDIR, into DIR, which must be empty or missing. You can
then use DIR as the workspace to work on the files of the image. Otherwise a workspace that is mounted
there (--workdir image) hides them.

The files are yours. Permissions are kept, set-user-ID bits are not. Symlinks are copied as they are,
wherever they lead. The image is fetched and unpacked first if it is not in the cache.
`,
		Example: "  caisson images export team/task:1 ./task\n  caisson run --workspace ./task --image team/task:1 --workdir image 'Make the tests pass.'",
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := imageArguments(args[:1])
			if err != nil {
				return err
			}
			return fetchImages(cmd.Context(), a, refs, func(ctx context.Context, s *store.Store, pulled func()) error {
				done, err := s.Export(ctx, refs[0], f.Path, args[1])
				pulled()
				if err != nil {
					return err
				}
				return a.say("%s: %d entries, %s copied to %s", done.Path, done.Entries, limits.FormatSize(done.Bytes), args[1])
			})
		},
	}, &f, usesConfig|interruptible, fetchExits)
}

func newImagesRemoveCommand(a *app) *cobra.Command {
	return newCommand(&cobra.Command{
		Use: "rm REF...", Short: "Remove images from the cache",
		Long: `Forget images and free content that no other image needs. An image that a session uses is not
removed. The next start on a name fetches it again, and pins its digest at that time.
`,
		Example: "  caisson images rm debian:bookworm-slim",
		RunE: func(cmd *cobra.Command, args []string) error {
			refs, err := imageArguments(args)
			if err != nil {
				return err
			}
			return withImages(cmd.Context(), a, nil, nil, func(s *store.Store, _ *caisson.Host) error {
				var total store.Pruned
				for _, ref := range refs {
					gone, err := s.Remove(cmd.Context(), ref)
					total = addPruned(total, gone)
					if err != nil {
						return errors.Join(err, showPruned(a, total))
					}
				}
				return showPruned(a, total)
			})
		},
	}, nil, usesConfig, statuses{exitFailed: imagesFailed, exitInput: imagesMissing})
}

func newImagesPruneCommand(a *app) *cobra.Command {
	var f struct {
		Unused time.Duration `flag:"unused" default:"720h" doc:"how long an image must not have been used"`
		All    bool          `flag:"all" doc:"every image that no session uses now"`
	}
	return newCommand(&cobra.Command{
		Use: "prune [flags]", Short: "Remove images that no session has used for a while", Args: noArgs,
		Long: `Forget images that no session has used for a while. Free content that no image needs, and the
leftovers of dead processes. Images that Caisson loaded into or built on the Docker engine are removed
after the same time. Images that sessions use stay, and so does everything else on the engine.
`,
		Example: "  caisson images prune\n  caisson images prune --unused 24h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.All && cmd.Flags().Changed("unused"):
				return newUsageError("--all or --unused, not both")
			case f.All:
				f.Unused = 0
			case f.Unused <= 0:
				return newUsageError("--unused %s: the time must be more than 0; --all removes what no session uses now", f.Unused)
			}
			return withImages(cmd.Context(), a, nil, nil, func(s *store.Store, host *caisson.Host) error {
				gone, err := s.Prune(cmd.Context(), f.Unused)
				err = errors.Join(err, showPruned(a, gone))
				engine := host.ImageEngine(cmd.Context())
				if engine == nil {
					return err
				}
				n, engineErr := engine.Prune(cmd.Context(), f.Unused)
				if n > 0 {
					err = errors.Join(err, a.say("%d images of Caisson removed from the engine", n))
				}
				return errors.Join(err, engineErr, engine.Close())
			})
		},
	}, &f, usesConfig, statuses{exitFailed: imagesFailed})
}

// withImages calls do with the image store, which reports progress to report. It fails if
// the requirements don't allow all of refs.
func withImages(ctx context.Context, a *app, report func(store.Progress), refs []images.Reference, do func(*store.Store, *caisson.Host) error) error {
	bs, err := openDefaultBackends(a)
	if err != nil {
		return err
	}
	defer bs.close()
	for _, ref := range refs {
		if err := bs.allowImage(ref); err != nil {
			return err
		}
	}
	bs.host.ReportPulls(report)
	store, err := bs.openImages(ctx)
	if err != nil {
		return imageFailure(err)
	}
	return imageFailure(do(store, bs.host))
}

func imageArguments(args []string) ([]images.Reference, error) {
	if len(args) == 0 {
		return nil, newUsageError("an image is needed, such as debian:bookworm-slim")
	}
	var refs []images.Reference
	for _, text := range args {
		ref, err := images.ParseLocalReference(text)
		if err != nil {
			return nil, &usageError{err}
		}
		if ref.Scheme == images.SchemeHost || ref.Scheme == images.SchemeRootFS {
			return nil, newUsageError("%s is used as it is, and never in the cache", text)
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// newPulling shows progress on standard error.
func newPulling(a *app) *ui.PullProgress {
	p := &ui.PullProgress{
		Say:   func(text string) { fmt.Fprintln(a.stderr, "caisson: "+makeSafe(text)) },
		Width: func() int { columns, _ := a.size(); return columns },
	}
	if a.drawsOn(a.stderr) {
		p.Bar = a.stderr
	}
	return p
}

type listedImage struct {
	Reference string     `json:"reference"`
	Digest    string     `json:"digest"`
	ID        string     `json:"id"`
	Platform  string     `json:"platform"`
	Bytes     int64      `json:"bytes"`
	Created   *time.Time `json:"created,omitempty"`
	Pulled    *time.Time `json:"pulled,omitempty"`
	Used      *time.Time `json:"used,omitempty"`
	InUse     bool       `json:"in_use"`
	Unpacked  bool       `json:"unpacked"`
	// Config is the configuration of the image's programs.
	Config images.Config `json:"config"`
}

func showImages(a *app, list []images.Image, asJSON bool) error {
	if asJSON {
		out := []listedImage{}
		for _, i := range list {
			out = append(out, listedImage{
				Reference: i.Reference.String(), Digest: i.Digest, ID: i.ID, Platform: i.Platform, Bytes: i.Size,
				Created: knownTime(i.Created), Pulled: knownTime(i.Pulled), Used: knownTime(i.Used), InUse: i.InUse, Unpacked: i.Unpacked, Config: i.Config,
			})
		}
		return writeJSON(a.stdout, out)
	}
	return showTable(a, false, list, table[images.Image]{
		titles: []string{"IMAGE", "DIGEST", "PLATFORM", "SIZE", "PULLED", "USED"},
		cells: func(i images.Image) []string {
			return []string{i.Reference.String(), doctor.ShortenDigest(i.Digest), i.Platform, limits.FormatSize(i.Size), usedText(i.Pulled, false), usedText(i.Used, i.InUse)}
		},
	})
}

// knownTime returns t in UTC, or nil if it is zero.
func knownTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func addPruned(a, b store.Pruned) store.Pruned {
	a.Images, a.Kept = append(a.Images, b.Images...), append(a.Kept, b.Kept...)
	a.Bytes += b.Bytes
	a.Orphans += b.Orphans
	return a
}

func showPruned(a *app, gone store.Pruned) error {
	return a.show(false, nil, func(p *page) {
		for _, i := range gone.Images {
			p.line("removed  %s  %s", i.Reference, doctor.ShortenDigest(i.Digest))
		}
		for _, i := range gone.Kept {
			p.line("kept     %s: a session uses it", i.Reference)
		}
		if gone.Orphans > 0 {
			p.line("removed  %d things that dead processes left unfinished", gone.Orphans)
		}
		p.line("%s freed", limits.FormatSize(gone.Bytes))
	})
}

const (
	imagesFailed  = "a registry can't be reached, or the image is in use"
	imagesMissing = "there is no such image, or it can't be used here"
)

var fetchExits = statuses{exitFailed: imagesFailed, exitAuth: "a registry refuses the credentials", exitInput: imagesMissing}
