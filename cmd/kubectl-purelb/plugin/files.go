package plugin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// maxFileSize bounds what is read of one file, in bytes.
const maxFileSize = 16 << 20

// Files are manifests as they were read.
type Files struct {
	Objects []FileObject
}

// FileObject is one object of a file.
type FileObject struct {
	File   string
	Object *unstructured.Unstructured
}

func (f *FileObject) String() string {
	name := f.Object.GetName()
	if namespace := f.Object.GetNamespace(); namespace != "" {
		name = namespace + "/" + name
	}
	return f.Object.GetKind() + " " + name
}

// ReadFiles reads manifests: YAML or JSON, with one or more objects each; "-" is in. A folder
// stands for the files in it that end in .yaml, .yml or .json.
func ReadFiles(paths []string, in io.Reader) (*Files, error) {
	files := &Files{}
	for _, path := range paths {
		if err := files.read(path, in); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func (f *Files) read(path string, in io.Reader) error {
	if path == "-" {
		return f.parse("standard input", in)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) && !entry.IsDir() {
				if err := f.read(filepath.Join(path, entry.Name()), in); err != nil {
					return err
				}
			}
		}
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return f.parse(path, file)
}

func (f *Files) parse(name string, in io.Reader) error {
	limited := &io.LimitedReader{R: in, N: maxFileSize + 1}
	decoder := utilyaml.NewYAMLReader(bufio.NewReader(limited))
	for {
		document, err := decoder.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if limited.N <= 0 {
			return fmt.Errorf("read %s: it is larger than %d MiB", name, maxFileSize>>20)
		}
		var content map[string]any
		if err := yaml.Unmarshal(document, &content); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if len(content) == 0 {
			continue
		}
		object := &unstructured.Unstructured{Object: normalise(content)}
		if object.IsList() {
			if err := object.EachListItem(func(item runtime.Object) error {
				f.add(name, item.(*unstructured.Unstructured))
				return nil
			}); err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			continue
		}
		if object.GetKind() == "" {
			return fmt.Errorf("read %s: an object has no kind", name)
		}
		f.add(name, object)
	}
	return nil
}

// normalise turns the numbers of JSON, which are all float64, into int64 where they are whole, as
// the API server does.
func normalise(content map[string]any) map[string]any {
	return normaliseValue(content).(map[string]any)
}

func normaliseValue(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = normaliseValue(v[key])
		}
	case []any:
		for i := range v {
			v[i] = normaliseValue(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return value
}

func (f *Files) add(name string, object *unstructured.Unstructured) {
	f.Objects = append(f.Objects, FileObject{File: name, Object: object})
}

// names returns the names of the files, each once.
func (f *Files) names() (names []string) {
	for i := range f.Objects {
		if !slices.Contains(names, f.Objects[i].File) {
			names = append(names, f.Objects[i].File)
		}
	}
	return names
}
