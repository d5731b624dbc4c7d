//go:build embed_programs

package programs

import "embed"

// The release script builds with the tag embed_programs and overlays files/
// with NAME.zst for each program, and SHA256SUMS with a line "SUM  NAME" for
// each.
//
//go:embed files
var embeddedFiles embed.FS

func init() { files = embeddedFiles }
