package store

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

func TestPullAndPin(t *testing.T) {
	reg := newRegistry(t)
	one := reg.push(t, "team/tool:v1", simple(t, imagetest.File("which", "one")))
	s := openStore(t, storeDir(t))
	ref := reg.ref(t, "team/tool:v1")
	root, release := rootfs(t, s, ref)
	defer release()
	if root.Digest != one || read(t, root, "which") != "one" {
		t.Errorf("digest %s, want %s", root.Digest, one)
	}

	// The tag moves, but the pin stays, also for the name's other spelling.
	two := reg.push(t, "team/tool:v1", simple(t, imagetest.File("which", "two")))
	again, release2 := rootfs(t, s, ref)
	release2()
	if again.Digest != one || again.Dir != root.Dir {
		t.Errorf("after the tag moved: %s", again.Digest)
	}
	// Another store on the same directory has the pin.
	reg.meddle.Store(new(meddler(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return true
	})))
	other, release3 := rootfs(t, openStore(t, s.o.Dir), ref)
	release3()
	if other.Digest != one {
		t.Errorf("offline: %s", other.Digest)
	}
	if _, err := s.Pull(t.Context(), ref); !errors.Is(err, images.ErrUnreachable) {
		t.Errorf("pull while the registry is down: %v", err)
	}

	// A pull that can't fetch the new image leaves the pin.
	reg.meddle.Store(new(blobOf(func(w http.ResponseWriter, _ int64) { http.Error(w, "gone", http.StatusNotFound) })))
	if _, err := s.Pull(t.Context(), ref); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("pull of an image without layers: %v", err)
	}
	reg.meddle.Store(nil)
	still, release7 := rootfs(t, s, ref)
	release7()
	if still.Digest != one {
		t.Errorf("after a pull that failed: %s", still.Digest)
	}

	im, err := s.Pull(t.Context(), ref)
	if err != nil || im.Digest != two || !im.Unpacked {
		t.Fatalf("pull: %+v, %v", im, err)
	}
	moved, release4 := rootfs(t, s, ref)
	defer release4()
	if moved.Digest != two || read(t, moved, "which") != "two" || read(t, root, "which") != "one" {
		t.Errorf("after a pull: %s", moved.Digest)
	}

	// The old image is still available by digest, with a tag or without.
	byDigest, release5 := rootfs(t, s, reg.ref(t, "team/tool@"+one))
	release5()
	both, release6 := rootfs(t, s, reg.ref(t, "team/tool:v1@"+one))
	release6()
	if byDigest.Digest != one || both.Digest != one || byDigest.Dir != root.Dir {
		t.Errorf("by digest: %s and %s, want %s", byDigest.Digest, both.Digest, one)
	}
}

func TestRootFSOfAnImage(t *testing.T) {
	shadow := imagetest.File("etc/shadow", "root:*:\n")
	shadow.Mode = 0o600
	im := makeImage(t, imageSpec{
		layers: [][]byte{imagetest.Archive(t, imagetest.WithShell(
			shadow, imagetest.Symlink("lib", "usr/lib"), imagetest.Directory("usr/lib"), imagetest.Directory("var/tmp"), imagetest.Directory("tmp"), imagetest.File("tmp/left", "x"), imagetest.File("home/app/.profile", "x"),
			imagetest.Symlink("data", "var/data"), imagetest.File("etc/group", "root:x:0:\n"), imagetest.Special(tar.TypeChar, "dev/null"), imagetest.Special(tar.TypeFifo, "srv/pipe"),
		)...)},
		config: v1.Config{
			Env: []string{"PATH=/opt/bin:/bin", "LANG=C", "broken", "=x", "NUL=a\x00b"}, User: "root", Entrypoint: []string{"/bin/false"},
			Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/bin/false"}, Interval: time.Second, Retries: 2}, OnBuild: []string{"RUN false"}, WorkingDir: "/srv/made/here",
			Volumes: map[string]struct{}{"/data": {}, "/tmp/x": {}, "/new/one": {}, "relative": {}, "/usr": {}, "/../up": {}, "/bin/sh": {}},
		},
	})
	reg := newRegistry(t)
	reg.push(t, "x:1", im)
	s := openStore(t, storeDir(t))
	root, release := rootfs(t, s, reg.ref(t, "x:1"))
	defer release()

	want := images.Config{
		User: "root", WorkingDir: "/srv/made/here", Entrypoint: []string{"/bin/false"}, Env: []string{"PATH=/opt/bin:/bin", "LANG=C"},
		Volumes:     []string{"/new/one", "/up", "/var/data"},
		HealthCheck: &images.HealthCheck{Test: []string{"CMD", "/bin/false"}, Interval: time.Second, Retries: 2},
	}
	if diff := cmp.Diff(want, root.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if info, err := os.Lstat(root.Dir + "/srv/made/here"); err != nil || !info.IsDir() {
		t.Errorf("the WORKDIR was not made: %v", err)
	}
	for _, v := range root.Config.Volumes {
		if info, err := os.Lstat(root.Dir + v); err != nil || !info.IsDir() {
			t.Errorf("volume %s has no directory: %v", v, err)
		}
	}
	wantBinds := map[string]string{"/bin": "/bin", "/etc": "/etc", "/usr": "/usr", "/var": "/var", "/srv": "/srv", "/new": "/new", "/up": "/up"}
	binds := map[string]string{}
	for _, b := range root.Binds {
		binds[b.Path] = strings.TrimPrefix(b.Source, root.Dir)
	}
	if diff := cmp.Diff(wantBinds, binds); diff != "" {
		t.Errorf("binds (-want +got):\n%s", diff)
	}
	wantLinks := []images.Symlink{{Path: "/data", Target: "var/data"}, {Path: "/lib", Target: "usr/lib"}}
	if diff := cmp.Diff(wantLinks, root.Symlinks); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	if got, want := read(t, root, "etc/passwd"), "agent:x:10001:10001:agent:/home/agent:/bin/sh\nroot:x:0:0::/root:/bin/sh\n"; !strings.HasPrefix(got, want) {
		t.Errorf("passwd %q, want %q first", got, want)
	}
	if got := read(t, root, "etc/group"); got != "agent:x:10001:\nroot:x:0:\n" {
		t.Errorf("group %q", got)
	}
	if !strings.Contains(read(t, root, "etc/hosts"), "localhost") {
		t.Error("no localhost")
	}
	if target, err := os.Readlink(filepath.Join(root.Dir, "var/tmp")); err != nil || target != "/tmp" {
		t.Errorf("/var/tmp is %q, %v", target, err)
	}
	if info, err := os.Stat(filepath.Join(root.Dir, "etc/shadow")); err != nil || info.Mode() != 0o644 {
		t.Errorf("shadow: %v, %v", info, err)
	}
	warned := strings.Join(root.Warnings, "\n")
	for _, want := range []string{`"/usr" was left out`, `"/bin/sh" was left out`, `"/srv/pipe"`, "3 entries of the image's environment"} {
		if !strings.Contains(warned, want) {
			t.Errorf("warnings lack %s:\n%s", want, warned)
		}
	}
	if strings.Contains(warned, "/dev/null") {
		t.Errorf("warned of /dev: %s", warned)
	}
}

func TestPlatforms(t *testing.T) {
	reg := newRegistry(t)
	arm := makeImage(t, imageSpec{layers: [][]byte{imagetest.Archive(t, imagetest.WithShell(imagetest.File("which", "arm"))...)}, arch: "arm64"})
	amd := simple(t, imagetest.File("which", "amd"))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: arm, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}},
		mutate.IndexAddendum{Add: amd, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: amd, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}},
	)
	tag, err := name.ParseReference(reg.host + "/multi:1")
	must(t, err)
	must(t, remote.WriteIndex(tag, index))
	indexDigest, err := index.Digest()
	must(t, err)
	reg.push(t, "arm:1", arm)

	dir := storeDir(t)
	for platform, want := range map[string]string{"linux/amd64": "amd", "linux/arm64": "arm"} {
		s := openStore(t, dir, func(o *Options) { o.Platform = platform })
		for _, ref := range []images.Reference{reg.ref(t, "multi:1"), reg.ref(t, "multi@"+indexDigest.String())} {
			for range 2 { // the second from the cache
				root, release := rootfs(t, s, ref)
				if got := read(t, root, "which"); got != want {
					t.Errorf("%s on %s is %s", ref, platform, got)
				}
				release()
			}
		}
	}
	s := openStore(t, dir, func(o *Options) { o.Platform = "linux/riscv64" })
	for _, ref := range []images.Reference{reg.ref(t, "multi:1"), reg.ref(t, "arm:1")} {
		_, _, err = s.RootFS(t.Context(), ref)
		if !errors.Is(err, images.ErrUnsupported) || !strings.Contains(err.Error(), "linux/riscv64") || !strings.Contains(err.Error(), "linux/arm64") {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "x:1", simple(t, imagetest.File("a", strings.Repeat("x", 10_000))))
	var unpacking atomic.Int64
	dir := storeDir(t)
	var group sync.WaitGroup
	dirs := make([]string, 30)
	for i := range dirs {
		group.Go(func() {
			s := openStore(t, dir, func(o *Options) {
				o.Progress = func(p Progress) {
					if p.Phase == PhaseUnpack && p.Done == p.Total {
						unpacking.Add(1)
					}
				}
			})
			root, release, err := s.RootFS(context.Background(), reg.ref(t, "x:1"))
			if err != nil {
				t.Error(err)
				return
			}
			dirs[i] = root.Dir
			release()
		})
	}
	group.Wait()
	if len(slices.Compact(slices.Sorted(slices.Values(dirs)))) != 1 {
		t.Errorf("the roots are %q", dirs)
	}
	if n := unpacking.Load(); n != 2 {
		t.Errorf("%d layers were unpacked, want 2: once", n)
	}
	noHalves(t, openStore(t, dir))
}

func TestProgress(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "x:1", simple(t, imagetest.File("a", strings.Repeat("x", 10_000))))
	var phases []Phase
	last := map[string]Progress{}
	s := openStore(t, storeDir(t), func(o *Options) {
		o.Progress = func(p Progress) {
			if len(phases) == 0 || phases[len(phases)-1] != p.Phase {
				phases = append(phases, p.Phase)
			}
			last[string(p.Phase)+p.Digest] = p
		}
	})
	_, release := rootfs(t, s, reg.ref(t, "x:1"))
	release()
	if diff := cmp.Diff([]Phase{PhaseResolve, PhaseDownload, PhaseUnpack, PhaseDone}, phases); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
	for _, p := range last {
		if p.Digest != "" && (p.Done != p.Total || p.Total == 0) {
			t.Errorf("the last of %s %s is %d of %d", p.Phase, p.Digest, p.Done, p.Total)
		}
	}
	if len(last) != 6 {
		t.Errorf("%d kinds of report", len(last))
	}
}

func TestListRemovePrune(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "x:1", simple(t, imagetest.File("a", strings.Repeat("1", 5000))))
	reg.push(t, "y:1", simple(t, imagetest.File("a", strings.Repeat("2", 5000))))
	s := openStore(t, storeDir(t))
	x, y := reg.ref(t, "x:1"), reg.ref(t, "y:1")
	xRoot, releaseX := rootfs(t, s, x)
	yRoot, releaseY := rootfs(t, s, y)
	releaseY()
	list, err := s.List(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	for i, want := range []images.Image{{Reference: x, Digest: xRoot.Digest, InUse: true}, {Reference: y, Digest: yRoot.Digest}} {
		got := list[i]
		if got.Reference != want.Reference || got.Digest != want.Digest || got.InUse != want.InUse || !got.Unpacked || got.Platform != "linux/amd64" ||
			got.Size < 5000 || got.Created.Unix() != 1_500_000_000 || time.Since(got.Used) > time.Minute || time.Since(got.Pulled) > time.Minute {
			t.Errorf("image %d is %+v", i, got)
		}
	}

	// An image in use is neither removed nor pruned, by this store or another.
	other := openStore(t, s.o.Dir)
	if _, err := other.Remove(t.Context(), x); !errors.Is(err, images.ErrInUse) {
		t.Errorf("remove what is in use: %v", err)
	}
	done, err := other.Prune(t.Context(), 0)
	if err != nil || len(done.Images) != 1 || len(done.Kept) != 1 || done.Images[0].Reference != y || done.Bytes < 5000 {
		t.Errorf("prune: %+v, %v", done, err)
	}
	if read(t, xRoot, "a") != strings.Repeat("1", 5000) || pathExists(yRoot.Dir) {
		t.Error("the wrong one went")
	}
	if done, err := s.Prune(t.Context(), time.Hour); err != nil || len(done.Images) != 0 || len(done.Kept) != 0 {
		t.Errorf("prune of what was used an hour ago: %+v, %v", done, err)
	}
	releaseX()
	releaseX() // twice is no harm
	done, err = other.Remove(t.Context(), x)
	if err != nil || len(done.Images) != 1 || done.Bytes < 5000 {
		t.Errorf("remove: %+v, %v", done, err)
	}
	if _, err := other.Remove(t.Context(), x); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("remove twice: %v", err)
	}
	for _, sub := range []string{"trees", "blobs/sha256", "refs", "tmp"} {
		if entries, err := os.ReadDir(filepath.Join(s.o.Dir, sub)); err != nil || len(entries) != 0 {
			t.Errorf("left in %s: %v, %v", sub, entries, err)
		}
	}
	_, release := rootfs(t, s, x)
	release()
}

func TestSharedContentStays(t *testing.T) {
	reg := newRegistry(t)
	im := simple(t, imagetest.File("a", "x"))
	reg.push(t, "x:1", im)
	reg.push(t, "y:1", im)
	s := openStore(t, storeDir(t))
	root, release := rootfs(t, s, reg.ref(t, "x:1"))
	release()
	same, release := rootfs(t, s, reg.ref(t, "y:1"))
	release()
	if root.Dir != same.Dir {
		t.Error("one content is unpacked twice")
	}
	if _, err := s.Remove(t.Context(), reg.ref(t, "x:1")); err != nil {
		t.Fatal(err)
	}
	reg.Close()
	again, release := rootfs(t, s, reg.ref(t, "y:1"))
	release()
	if read(t, again, "a") != "x" {
		t.Error("content that another image needs is gone")
	}
}

func TestDamagedStore(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "x:1", simple(t))
	s := openStore(t, storeDir(t))
	ref := reg.ref(t, "x:1")
	_, release := rootfs(t, s, ref)
	release()
	refs, err := filepath.Glob(filepath.Join(s.o.Dir, "refs", "*"))
	if err != nil || len(refs) != 1 {
		t.Fatal(refs, err)
	}
	for _, text := range []string{"", "{", `{"version":99}`, `{"version":1,"digest":"../../etc","id":"x","tree":"../.."}`} {
		must(t, os.WriteFile(refs[0], []byte(text), 0o600))
		if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("list with %q: %v, %v", text, list, err)
		}
		_, release := rootfs(t, s, ref)
		release()
	}
	// Blobs that were lost or changed are fetched again.
	blobs, err := filepath.Glob(filepath.Join(s.o.Dir, "blobs/sha256/*"))
	if err != nil || len(blobs) != 4 {
		t.Fatal(blobs, err)
	}
	trees, err := filepath.Glob(filepath.Join(s.o.Dir, "trees/*"))
	if err != nil || len(trees) != 1 {
		t.Fatal(trees, err)
	}
	for i, b := range blobs {
		if i%2 == 0 {
			err = os.Remove(b)
		} else {
			err = os.WriteFile(b, []byte("other"), 0o600)
		}
		must(t, errors.Join(err, os.RemoveAll(trees[0])))
		root, release := rootfs(t, s, ref)
		release()
		if data, err := os.ReadFile(b); err != nil || digest.Of(data) != "sha256:"+filepath.Base(b) || !pathExists(root.Dir) {
			t.Errorf("blob %s is %q, %v", b, data, err)
		}
	}

	// After a boot a tree is checked once. A whole one is kept, and one that
	// lost something in a power cut is made again.
	root, release := rootfs(t, s, ref)
	release()
	boot := func() {
		f, err := s.trees.readFacts(filepath.Base(trees[0]))
		must(t, err)
		f.Boot = "another"
		data, err := json.Marshal(f)
		must(t, errors.Join(err, os.WriteFile(filepath.Join(trees[0], "facts.json"), data, 0o600)))
	}
	for what, harm := range map[string]func() error{
		"nothing":          func() error { return nil },
		"a file is short":  func() error { return os.Truncate(filepath.Join(root.Dir, "bin/sh"), 0) },
		"a file is gone":   func() error { return os.Remove(filepath.Join(root.Dir, "bin/sh")) },
		"facts are broken": func() error { return os.Truncate(filepath.Join(trees[0], "facts.json"), 5) },
		"facts are gone":   func() error { return os.Remove(filepath.Join(trees[0], "facts.json")) },
	} {
		boot()
		mark := filepath.Join(root.Dir, "etc")
		must(t, errors.Join(os.Chtimes(mark, time.Time{}, time.Unix(1, 0)), harm()))
		again, release := rootfs(t, s, ref)
		release()
		info, err := os.Stat(mark)
		if err != nil || (info.ModTime().Unix() == 1) != (what == "nothing") || read(t, again, "bin/sh") != "#!" {
			t.Errorf("%s: the tree is of %v, %v", what, info.ModTime(), err)
		}
	}

	for what, dir := range map[string]func(dir string) error{
		"writable for others": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)) },
		"a link":              func(dir string) error { return os.Symlink(t.TempDir(), dir) },
		"a file":              func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
	} {
		dir2 := storeDir(t)
		must(t, dir(dir2))
		if _, err := New(Options{Dir: dir2}); err == nil {
			t.Errorf("a store in %s", what)
		}
	}
}

func TestNewStoreErrors(t *testing.T) {
	for what, o := range map[string]Options{
		"no directory":         {},
		"a relative directory": {Dir: "x"},
		"a platform":           {Dir: storeDir(t), Platform: "amd64"},
		"a relative builder":   {Dir: storeDir(t), Buildah: "buildah"},
		"an account":           {Dir: storeDir(t), Accounts: []images.Account{{Name: "a:b", Home: "/"}}},
	} {
		if _, err := New(o); !errors.Is(err, images.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestResolve(t *testing.T) {
	reg := newRegistry(t)
	digest := reg.push(t, "x:1", makeImage(t, imageSpec{
		layers: [][]byte{imagetest.Archive(t, imagetest.WithShell()...)}, config: v1.Config{Env: []string{"A=b"}, Volumes: map[string]struct{}{"/data": {}}},
	}))
	s := openStore(t, storeDir(t))
	before := reg.blobs.Load()
	im, err := s.Resolve(t.Context(), reg.ref(t, "x:1"))
	if err != nil || im.Digest != digest || im.Unpacked || !slices.Equal(im.Config.Env, []string{"A=b"}) || !slices.Equal(im.Config.Volumes, []string{"/data"}) {
		t.Errorf("%+v, %v", im, err)
	}
	if n := reg.blobs.Load() - before; n != 1 {
		t.Errorf("%d blobs were fetched, want the configuration alone", n)
	}
	// It is pinned.
	asked := reg.requests.Load()
	if again, err := s.Resolve(t.Context(), reg.ref(t, "x:1")); err != nil || again.Digest != digest || reg.requests.Load() != asked {
		t.Errorf("again: %s, %v, %d requests", again.Digest, err, reg.requests.Load()-asked)
	}
	if _, err := s.Resolve(t.Context(), reg.ref(t, "y:1")); !errors.Is(err, images.ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
	if _, err := s.Resolve(t.Context(), images.Reference{Scheme: images.SchemeHost}); !errors.Is(err, images.ErrUnsupported) {
		t.Errorf("host: %v", err)
	}
}
