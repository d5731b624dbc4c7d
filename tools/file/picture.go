package file

import (
	"context"
	"fmt"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/picture"
	"github.com/caisson-run/caisson/tools/workspace"
)

func (r *readers) readPicture(ctx context.Context, head workspace.File) (tools.Output, error) {
	media := picture.Type(head.Data)
	if head.Size > picture.MaxBytes {
		return tools.Output{}, refuse("too_large", "%s is a picture of %d bytes; at most %d can be shown", shown(head.Path), head.Size, picture.MaxBytes)
	}
	whole, err := r.view.ReadFile(ctx, head.Path, 0, picture.MaxBytes)
	if err != nil {
		return tools.Output{}, err
	}
	size, err := picture.Size(media, whole.Data)
	switch {
	case err != nil:
		out := describeFile(head)
		addNote(&out, "it looks like "+media+" but is not a picture that can be shown")
		return out, nil
	case size.X > picture.MaxSide || size.Y > picture.MaxSide:
		return tools.Output{}, refuse("too_large", "%s is a picture of %d × %d pixels; at most %d a side can be shown", shown(head.Path), size.X, size.Y, picture.MaxSide)
	}
	out := textOutput(fmt.Sprintf("[%s, %d × %d pixels, %d bytes]", media, size.X, size.Y, len(whole.Data)))
	out.Content = append(out.Content, tools.Block{Image: whole.Data, MediaType: media})
	out.Metadata = map[string]any{"media_type": media, "width": size.X, "height": size.Y}
	return out, nil
}
