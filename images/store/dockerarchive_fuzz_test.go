package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/internal/imagetest"
)

// FuzzDockerArchive reads an archive of any bytes: it is an image or an error,
// and nothing else.
func FuzzDockerArchive(f *testing.F) {
	f.Add(saved(f, ""))
	f.Add(saved(f, "nothing"))
	f.Add(saved(f, "", imagetest.File("manifest.json", `[{"Config":"c","Layers":["c"]}]`), imagetest.Symlink("c", "c")))
	f.Add(imagetest.Gzip(f, saved(f, "")))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "image.tar")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		im, err := openArchive(images.Reference{Scheme: images.SchemeArchive, Value: path}, path, &Options{Platform: "linux/amd64", Limits: lowLimits})
		if err != nil {
			return
		}
		defer im.close()
		if !digest.Valid(im.id) || len(im.layers) > lowLimits.Layers {
			t.Errorf("an image %s of %d layers", im.id, len(im.layers))
		}
		for _, l := range im.layers {
			if !digest.Valid(l.DiffID) || l.Size > int64(len(data)) {
				t.Errorf("a layer %s of %d bytes", l.DiffID, l.Size)
			}
		}
	})
}
