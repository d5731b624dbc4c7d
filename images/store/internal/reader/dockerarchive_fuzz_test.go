package reader

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/internal/imagetest"
	"github.com/caisson-run/caisson/images/layer"
)

// Any bytes give an image or an error.
func FuzzDockerArchive(f *testing.F) {
	f.Add(imagetest.DockerArchive(f, ""))
	f.Add(imagetest.DockerArchive(f, "nothing"))
	f.Add(imagetest.DockerArchive(f, "", imagetest.File("manifest.json", `[{"Config":"c","Layers":["c"]}]`), imagetest.Symlink("c", "c")))
	f.Add(imagetest.Gzip(f, imagetest.DockerArchive(f, "")))
	limits := layer.Limits{Layers: 8, MetadataBytes: 64 << 10}.WithDefaults()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "image.tar")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		im, err := OpenArchive(images.Reference{Scheme: images.SchemeArchive, Value: path}, path, &Options{Platform: "linux/amd64", Limits: limits})
		if err != nil {
			return
		}
		defer im.Close()
		if !digest.Valid(im.ID) || len(im.Layers) > limits.Layers {
			t.Errorf("an image %s of %d layers", im.ID, len(im.Layers))
		}
		for _, l := range im.Layers {
			if !digest.Valid(l.DiffID) || l.Size > int64(len(data)) {
				t.Errorf("a layer %s of %d bytes", l.DiffID, l.Size)
			}
		}
	})
}
