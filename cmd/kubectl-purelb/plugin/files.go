package plugin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	Broken  []BrokenDocument
	// SkippedFolders are those that were not looked into, because they are in another one.
	SkippedFolders []string
}

// BrokenDocument is a part of a file that is no object.
type BrokenDocument struct {
	File     string
	Document int // from 1
	Why      error
}

func (b *BrokenDocument) String() string { return fmt.Sprintf("document %d", b.Document) }

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
// stands for the files in it that end in .yaml, .yml or .json, and for those of the folders in it if
// isRecursive. What is no object is in Broken, and the others are read. It is an error if there is
// nothing at all, as a program in front of a pipe that failed leaves it.
func ReadFiles(paths []string, in io.Reader, isRecursive bool) (*Files, error) {
	files := &Files{}
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = path
		var err error
		if path == "-" {
			names[i] = "standard input"
			err = files.parse(names[i], in)
		} else {
			err = files.read(path, isRecursive)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(files.Objects) == 0 && len(files.Broken) == 0 {
		why := "there is no object in " + strings.Join(names, ", ")
		if len(files.SkippedFolders) > 0 {
			why += " without the folders in it: use --recursive"
		}
		return nil, errors.New(why)
	}
	return files, nil
}

func (f *Files) read(path string, isRecursive bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return f.readFolder(path, isRecursive)
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return f.parse(path, file)
}

func (f *Files) readFolder(path string, isRecursive bool) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		inner := filepath.Join(path, entry.Name())
		switch {
		case entry.IsDir() && !isRecursive:
			f.SkippedFolders = append(f.SkippedFolders, inner)
		case entry.IsDir() || slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(inner)):
			if err := f.read(inner, isRecursive); err != nil {
				return err
			}
		}
	}
	return nil
}

// parse reads the documents of a file, each for itself. What cannot be read as a whole is an error.
func (f *Files) parse(name string, in io.Reader) error {
	limited := &io.LimitedReader{R: in, N: maxFileSize + 1}
	decoder := utilyaml.NewYAMLReader(bufio.NewReader(limited))
	for i := 1; ; i++ {
		document, err := decoder.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if limited.N <= 0 {
			return fmt.Errorf("read %s: it is larger than %d MiB", name, maxFileSize>>20)
		}
		if err := f.addDocument(name, document); err != nil {
			f.Broken = append(f.Broken, BrokenDocument{name, i, err})
		}
	}
}

// addDocument adds the objects of a document: one, those of a List, or none if it is empty.
func (f *Files) addDocument(name string, document []byte) error {
	var content map[string]any
	if err := yaml.Unmarshal(document, &content); err != nil {
		return err
	}
	if len(content) == 0 {
		return nil
	}
	object := &unstructured.Unstructured{Object: normalise(content)}
	if !object.IsList() {
		return f.add(name, object)
	}
	return object.EachListItem(func(item runtime.Object) error {
		return f.add(name, item.(*unstructured.Unstructured))
	})
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

// add adds one object of a file. It fails if the object has no kind.
func (f *Files) add(name string, object *unstructured.Unstructured) error {
	if object.GetKind() == "" {
		return errors.New("an object has no kind")
	}
	f.Objects = append(f.Objects, FileObject{File: name, Object: object})
	return nil
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
