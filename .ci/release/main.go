// Command release makes the parts of a release that .ci/release.sh can't make with Debian's programs: packages, the
// container image, and what is told about linked modules. Each writes a file or a directory:
//
//	release modules VERSION BUILD ARCH...        BUILD/sbom.json and BUILD/THIRD_PARTY
//	release package FORMAT CONFIGURATION FILE    a deb or an rpm, signed by the command in SIGN
//	release image VERSION DIR [ARCH BASE LAYER]... an OCI layout; BASE and LAYER are tars
package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers itself
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	date := time.Unix(seconds, 0).UTC()
	switch {
	case len(args) > 3 && args[0] == "modules":
		return writeModules(args[1], args[2], args[3:], date)
	case len(args) == 4 && args[0] == "package":
		return writePackage(args[1], args[2], args[3], date)
	case len(args) > 3 && args[0] == "image":
		return writeImage(args[1], args[2], args[3:], date)
	}
	return fmt.Errorf("unknown arguments %q", args)
}

func writePackage(format, configuration, path string, date time.Time) error {
	config, err := nfpm.ParseFile(configuration)
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	info.MTime = date
	if sign := strings.Fields(os.Getenv("SIGN")); len(sign) > 0 {
		info.RPM.Signature.SignFn = func(data io.Reader) ([]byte, error) {
			cmd := exec.Command(sign[0], append(sign[1:], "--detach-sign")...)
			cmd.Stdin, cmd.Stderr = data, os.Stderr
			return cmd.Output()
		}
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	return create(path, func(w io.Writer) error { return packager.Package(info, w) })
}

// writeImage writes an index of the architectures and their images, whose layers are the tars.
func writeImage(version, dir string, tars []string, date time.Time) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for ; len(tars) >= 3; tars = tars[3:] {
		image, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), &v1.ConfigFile{
			Architecture: tars[0], OS: "linux", Created: v1.Time{Time: date}, RootFS: v1.RootFS{Type: "layers"},
			Config: v1.Config{
				Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"bash"},
				Labels: map[string]string{
					"org.opencontainers.image.source": "https://github.com/caisson-run/caisson", "org.opencontainers.image.version": version,
					"org.opencontainers.image.licenses": "Apache-2.0",
				},
			},
		})
		if err != nil {
			return err
		}
		for _, path := range tars[1:3] {
			layer, err := tarball.LayerFromFile(path, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression))
			if err != nil {
				return err
			}
			history := v1.History{Created: v1.Time{Time: date}, CreatedBy: strings.TrimSuffix(filepath.Base(path), ".tar")}
			if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: history}); err != nil {
				return err
			}
		}
		platform := &v1.Platform{OS: "linux", Architecture: tars[0]}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": version, "io.containerd.image.name": "ghcr.io/caisson-run/caisson:" + version, // for docker load
	}))
}

func create(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}
