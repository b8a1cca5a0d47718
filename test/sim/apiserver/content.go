package apiserver

import (
	"cmp"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// compareKeys orders objects by namespace and name.
func compareKeys(a, b client.ObjectKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// toMap returns the content of an object as JSON has it.
func toMap(obj any) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
}

// fromMap returns an object of the type of like with the given content.
func fromMap(content map[string]any, like client.Object) (client.Object, error) {
	obj := reflect.New(reflect.TypeOf(like).Elem()).Interface().(client.Object)
	return obj, runtime.DefaultUnstructuredConverter.FromUnstructured(content, obj)
}

// setContent makes obj what stored is, without sharing anything with it.
func setContent(obj, stored client.Object) error {
	to, from := reflect.ValueOf(obj).Elem(), reflect.ValueOf(stored.DeepCopyObject()).Elem()
	if to.Type() != from.Type() {
		return fmt.Errorf("the API server in memory has %s, not %s", from.Type(), to.Type())
	}
	to.Set(from)
	return nil
}

// statusOf returns the field Status of an object.
func statusOf(obj client.Object) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName("Status")
}

func clearStatus(obj client.Object) { statusOf(obj).SetZero() }

// copyStatus gives obj the status of from.
func copyStatus(obj, from client.Object) {
	statusOf(obj).Set(statusOf(from.DeepCopyObject().(client.Object)))
}

// sameDesire reports whether two objects differ in metadata and status at most.
func sameDesire(a, b client.Object) bool {
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range x.NumField() {
		switch x.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", "Status":
			continue
		}
		if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			return false
		}
	}
	return true
}
