package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/sandbox/internal/worktest"
)

// shellTar returns a root filesystem with nothing but this machine's shell.
func shellTar(t *testing.T) []byte {
	t.Helper()
	sh, err := filepath.EvalSymlinks("/bin/sh")
	must(t, err)
	files := map[string]string{"bin/sh": sh}
	program, err := elf.Open(sh)
	must(t, err)
	defer program.Close()
	if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) > 0 {
		out, err := exec.CommandContext(t.Context(), "ldd", sh).Output()
		if err != nil {
			t.Skipf("needs ldd: %v", err)
		}
		for _, path := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
			real, err := filepath.EvalSymlinks(path)
			must(t, err)
			files[strings.TrimPrefix(path, "/")] = real
		}
	}
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for name, source := range files {
		data, err := os.ReadFile(source)
		must(t, err)
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}))
		_, err = w.Write(data)
		must(t, err)
	}
	must(t, w.Close())
	return buffer.Bytes()
}

// importImage puts an image on the engine until the test ends.
func importImage(t *testing.T, content []byte, changes ...string) (*client.Client, string) {
	t.Helper()
	return importImageInto(t, "", content, changes...)
}

func importImageInto(t *testing.T, host string, content []byte, changes ...string) (*client.Client, string) {
	t.Helper()
	e, err := resolveEndpoint(host, os.Getenv)
	must(t, err)
	r, err := dialEngine(t.Context(), e, defaultDeadlines())
	must(t, err)
	c := r.engine.(*client.Client)
	name := "caisson-test/image:" + strings.ToLower(ulid.Make().String())
	answer, err := c.ImageImport(t.Context(), image.ImportSource{Source: bytes.NewReader(content), SourceName: "-"}, name, image.ImportOptions{Changes: changes})
	must(t, err)
	_, err = io.Copy(io.Discard, answer)
	must(t, err)
	answer.Close()
	t.Cleanup(func() {
		if _, err := c.ImageRemove(context.Background(), name, image.RemoveOptions{Force: true}); err != nil {
			t.Errorf("remove test image: %v", err)
		}
		c.Close()
	})
	return c, name
}

// An engine's image brings its files and environment. Its entry point, health
// check, user, directory and volumes don't count.
func TestEngineImage(t *testing.T) {
	b := newBed(t, os.Geteuid())
	c, name := importImage(t, shellTar(t), "VOLUME /data /var/lib/more", "VOLUME /tmp", `ENTRYPOINT ["/bin/false"]`, `CMD ["whatever"]`, "USER nobody",
		"HEALTHCHECK --interval=1s CMD /bin/false", "ENV TOOL=of-the-image HOME=/evil LD_PRELOAD=/evil", "WORKDIR /nowhere", "ONBUILD RUN false")
	before := volumes(t, c)
	spec := b.spec(t, newSession())
	spec.Image = images.Reference{Scheme: images.SchemeName, Value: name}
	s, err := b.backend.Create(t.Context(), spec)
	must(t, err)
	defer s.Destroy(context.Background())
	out, exit := worktest.Shell(t, s, `echo "$TOOL $HOME$LD_PRELOAD"; echo x >file; echo x >/data/file; echo x >/readonly || echo read-only; while read -r line; do case $line in *" /data "*) echo "$line";; esac; done </proc/self/mountinfo`)
	lines := strings.Split(out, "\n")
	if !exit.Status.Success() || lines[0] != "of-the-image /home/agent" || !strings.Contains(out, "read-only") || !strings.Contains(out, "tmpfs") {
		t.Errorf("%v: %q", exit.Status, out)
	}
	a := s.Attestation()
	if a.Image != name || !strings.HasPrefix(a.ImageDigest, "sha256:") || a.User != "10001:10001" && os.Geteuid() == 0 {
		t.Errorf("attested image %s %s, user %s", a.Image, a.ImageDigest, a.User)
	}
	if during := volumes(t, c); during != before {
		t.Errorf("%d volumes while it runs, %d before", during, before)
	}
	must(t, s.Destroy(t.Context()))
	b.nothingLeft(t, spec.Session)

	byID := b.spec(t, newSession())
	byID.Image = images.Reference{Scheme: images.SchemeName, Value: a.ImageDigest}
	s, err = b.backend.Create(t.Context(), byID)
	must(t, err)
	must(t, s.Destroy(t.Context()))
}

// volumes counts anonymous volumes, which an image's VOLUME would make.
func volumes(t *testing.T, c *client.Client) int {
	t.Helper()
	list, err := c.VolumeList(t.Context(), volume.ListOptions{})
	must(t, err)
	n := 0
	for _, v := range list.Volumes {
		if anonymous.MatchString(v.Name) {
			n++
		}
	}
	return n
}

var anonymous = regexp.MustCompile(`^[0-9a-f]{64}$`)

func TestDirectoryImage(t *testing.T) {
	b := newBed(t, os.Geteuid())
	root := t.TempDir()
	must(t, os.Chmod(root, 0o755))
	unpack(t, shellTar(t), root)
	must(t, os.Mkdir(filepath.Join(root, "app"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "app", "of-the-image"), nil, 0o644))
	spec := b.spec(t, newSession())
	spec.Image, spec.Workspace.Target = images.Reference{Scheme: images.SchemeRootFS, Value: root}, "/app"
	s, err := b.backend.Create(t.Context(), spec)
	must(t, err)
	defer func() {
		must(t, s.Destroy(context.Background()))
		r, _, err := b.backend.connect(context.Background())
		must(t, err)
		_, err = r.removeImage(context.Background(), containerOf(s).image.id, true)
		must(t, err)
	}()
	if out, exit := worktest.Shell(t, s, "echo *; pwd; echo x >/bin/x || echo read-only"); out != "*\n/app\nread-only\n" || !exit.Status.Success() {
		t.Errorf("%v: %q", exit.Status, out)
	}
}
